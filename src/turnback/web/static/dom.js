// Builds and updates DOM nodes. Data only ever becomes text or attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("a", {class: "x", href: "/", onclick: f}, "text", node, [more])`. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else attribute(node, name, value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child !== null && child !== undefined && child !== false) node.append(child);
  }
}

/** Sets an attribute; null, undefined and false remove it, true makes it empty. */
export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Sets several attributes. */
export function attributes(node, values) {
  for (const [name, value] of Object.entries(values)) attribute(node, name, value);
}

/** Sets text if it is another, so that a selection in it survives. */
export function text(node, value) {
  const wanted = value === null || value === undefined ? "" : String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Replaces the children if what they show, given as `key`, has changed. */
export function replaceIfChanged(node, key, create) {
  const known = JSON.stringify(key);
  if (node.shown === known) return;
  node.shown = known;
  replace(node, create());
}

/** Brings pairs `[term, value, create?]` up to date; `create(value)` returns nodes if the value is more than text. */
export function showPairs(list, pairs) {
  reconcile(list, pairs, ([term]) => term, ([term]) => h("div", null, h("dt", null, term), h("dd")), (pair, [, value, create]) => {
    if (create === undefined) text(pair.lastChild, value);
    else replaceIfChanged(pair.lastChild, value, () => create(value));
  });
}

/** Replaces the children. */
export function replace(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/**
 * Makes the children of `parent` those of `items`, keeping the nodes of items that stay.
 * `create(item)` returns a node, `update(node, item)` brings it up to date.
 */
export function reconcile(parent, items, key, create, update) {
  const old = new Map();
  for (const child of parent.children) if (child.itemKey !== undefined) old.set(child.itemKey, child);
  let next = parent.firstElementChild;
  for (const item of items) {
    const id = String(key(item));
    let node = old.get(id);
    if (node === undefined) {
      node = create(item);
      node.itemKey = id;
    }
    old.delete(id);
    update?.(node, item);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  for (const node of old.values()) node.remove();
}

let ids = 0;

/** An id that nothing else on the page has. */
export function uniqueId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}
