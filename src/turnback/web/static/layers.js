// Where the operators of a graph are drawn: in layers, with few crossings.

/**
 * Lays out `operators` ({uid, inputs}).
 *
 * @returns {layers, edges}: layers of items `{uid, dummy, layer, at}`, and edges
 *   `{from, to, path}` where path lists the items an edge runs through, its ends included.
 */
export function layOut(operators) {
  const depth = depths(operators);
  const items = new Map(operators.map((operator) => [operator.uid, { uid: operator.uid, dummy: false, layer: depth.get(operator.uid), at: 0 }]));
  const layers = [];
  for (const item of items.values()) (layers[item.layer] ??= []).push(item);
  const edges = [];
  for (const operator of operators) {
    for (const input of operator.inputs) {
      if (items.has(input)) edges.push(route(items.get(input), items.get(operator.uid), layers));
    }
  }
  order(layers, edges);
  return { layers, edges };
}

function depths(operators) {
  const byUid = new Map(operators.map((operator) => [operator.uid, operator]));
  const depth = new Map();
  function of(uid, seen) {
    if (depth.has(uid)) return depth.get(uid);
    if (seen.has(uid)) return 0;
    seen.add(uid);
    const inputs = byUid.get(uid).inputs.filter((input) => byUid.has(input));
    const own = inputs.length === 0 ? 0 : 1 + Math.max(...inputs.map((input) => of(input, seen)));
    depth.set(uid, own);
    return own;
  }
  for (const uid of byUid.keys()) of(uid, new Set());
  return depth;
}

// An edge over several layers takes a place in each, so that it runs around other operators.
function route(from, to, layers) {
  const path = [from];
  for (let layer = from.layer + 1; layer < to.layer; layer += 1) {
    const dummy = { uid: `${from.uid}\0${to.uid}\0${layer}`, dummy: true, layer, at: 0 };
    layers[layer].push(dummy);
    path.push(dummy);
  }
  path.push(to);
  return { from: from.uid, to: to.uid, path };
}

function order(layers, edges) {
  const before = new Map();
  const after = new Map();
  const link = (map, item, other) => map.set(item, [...(map.get(item) ?? []), other]);
  for (const { path } of edges) {
    for (let at = 1; at < path.length; at += 1) {
      link(before, path[at], path[at - 1]);
      link(after, path[at - 1], path[at]);
    }
  }
  const number = () => layers.forEach((layer) => layer.forEach((item, at) => {
    item.at = at - (layer.length - 1) / 2;
  }));
  const sort = (layer, neighbours) => {
    const middle = new Map(layer.map((item) => {
      const near = neighbours.get(item) ?? [];
      return [item, near.length === 0 ? item.at : near.reduce((sum, other) => sum + other.at, 0) / near.length];
    }));
    layer.sort((a, b) => middle.get(a) - middle.get(b));
  };
  number();
  for (let round = 0; round < 4; round += 1) {
    layers.forEach((layer) => (sort(layer, before), number()));
    [...layers].reverse().forEach((layer) => (sort(layer, after), number()));
  }
}
