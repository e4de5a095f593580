// A view with what surrounds it: the bars before the first data, errors above the last.

import { h, replace } from "./dom.js";
import { Live } from "./live.js";
import { failure, skeleton } from "./message.js";

/**
 * Shows a view `{node, load?, show?, interval?, stop?}` and keeps it up to date.
 * A view without `load` is shown as it is.
 */
export function frame(view, lines) {
  const waiting = skeleton(lines);
  const trouble = h("div");
  const node = h("div", { class: "frame" }, trouble, waiting, view.node);
  let live = null;
  let shown = false;

  function ready() {
    if (shown) return;
    shown = true;
    waiting.remove();
    view.node.hidden = false;
  }

  function fail(error) {
    // That the server is away is said once, at the top of the page.
    if (error.status === 0 && shown) return;
    if (error.status !== 0) waiting.remove();
    if (trouble.firstChild?.message === error.message) return;
    const box = failure(error, () => live.now());
    box.message = error.message;
    replace(trouble, box);
  }

  if (view.load) {
    view.node.hidden = true;
    live = new Live({
      load: (signal) => view.load(signal),
      show: (data) => {
        view.show(data);
        ready();
        replace(trouble);
      },
      fail,
      interval: view.interval,
    });
  } else {
    ready();
  }
  return {
    node,
    now: () => live?.now(),
    stop: () => {
      live?.stop();
      view.stop?.();
    },
  };
}
