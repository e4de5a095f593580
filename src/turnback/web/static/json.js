// Values as JSON. Integers that a double would round come from the server as texts.

/** The JSON of a value; `indent` 0 puts it on one line. */
export function print(value, indent = 0, depth = 0) {
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
