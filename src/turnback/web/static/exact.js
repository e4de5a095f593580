// JSON whose numbers keep their digits: state holds 64-bit integers, which a double rounds.

/** A number that JavaScript would show otherwise than it was written. */
export class Exact {
  constructor(source) {
    this.source = source;
  }

  toString() {
    return this.source;
  }

  valueOf() {
    return Number(this.source);
  }
}

function keep(_, value, context) {
  if (typeof value !== "number" || context?.source === undefined) return value;
  return Number.isInteger(value) && !Number.isSafeInteger(value) ? new Exact(context.source) : value;
}

/** Parses JSON. */
export function parse(text) {
  return JSON.parse(text, keep);
}

/** The JSON of a value; `indent` 0 puts it on one line. */
export function print(value, indent = 0, depth = 0) {
  if (value instanceof Exact) return value.source;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const list = Array.isArray(value);
  const parts = list
    ? value.map((item) => print(item, indent, depth + 1))
    : Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${print(v, indent, depth + 1)}`);
  const [open, close] = list ? "[]" : "{}";
  if (parts.length === 0) return open + close;
  if (indent === 0) return open + parts.join(", ") + close;
  const inner = " ".repeat(indent * (depth + 1));
  return `${open}\n${parts.map((part) => inner + part).join(",\n")}\n${" ".repeat(indent * depth)}${close}`;
}
