// Tabs that are links: arrow keys move between them, Enter opens.

import { attribute, h } from "./dom.js";

/** A bar of `{id, label, href}`; `choose(id)` is called by the arrow keys. */
export function tabBar(tabs, choose) {
  const links = new Map(tabs.map(({ id, label, href }) => [
    id, h("a", { class: "tab", role: "tab", href, "aria-controls": "panel", id: `tab-${id}` }, label),
  ]));
  const order = [...links.keys()];
  const node = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the job", onkeydown: move }, [...links.values()]);

  function move(event) {
    const at = order.findIndex((id) => links.get(id) === event.target);
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: order.length - 1 };
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const id = order[(steps[event.key] + order.length) % order.length];
    choose(id);
    links.get(id).focus();
  }

  function select(chosen) {
    for (const [id, link] of links) {
      attribute(link, "aria-selected", String(id === chosen));
      attribute(link, "tabindex", id === chosen ? "0" : "-1");
    }
    reveal();
  }

  // Where the bar is too long for the screen: only the bar scrolls, not the page.
  function reveal() {
    requestAnimationFrame(() => {
      const link = node.querySelector('[aria-selected="true"]');
      const left = link.offsetLeft - node.offsetLeft;
      if (left < node.scrollLeft) node.scrollLeft = left - 24;
      else if (left + link.offsetWidth > node.scrollLeft + node.clientWidth) {
        node.scrollLeft = left + link.offsetWidth - node.clientWidth + 24;
      }
    });
  }

  return { node, select, reveal };
}
