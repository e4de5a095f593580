// Light, dark, or as the system says.

import { attribute, h, replace } from "./dom.js";
import { icon } from "./icons.js";

const KEY = "turnback.theme";
const ORDER = ["system", "light", "dark"];
const LOOKS = { system: ["screen", "as the system"], light: ["sun", "light"], dark: ["moon", "dark"] };

function kept() {
  return document.documentElement.dataset.theme ?? "system";
}

function keep(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Without storage the choice lasts until the page is left.
  }
}

/** The button that goes from one to the next. */
export function themeButton() {
  const button = h("button", {
    class: "tool", type: "button",
    onclick: () => {
      keep(ORDER[(ORDER.indexOf(kept()) + 1) % ORDER.length]);
      draw();
    },
  });
  function draw() {
    const [shape, word] = LOOKS[kept()];
    replace(button, icon(shape));
    attribute(button, "title", `Colours: ${word}`);
    attribute(button, "aria-label", `Colours: ${word}. Change`);
  }
  draw();
  return button;
}
