// Whether the server answers, and the note that says so.

import { h, text } from "./dom.js";

const retries = new Set();
let awaySince = null;
let nextTry = 0;
let ticker = null;

const message = h("span", { role: "alert" });
const countdown = h("span", { "aria-hidden": "true" });
const button = h("button", { class: "link", type: "button", onclick: retryNow }, "Retry now");
const note = h("div", { class: "away", hidden: true }, h("span", { class: "dot" }), h("p", null, message, countdown), button);
const dot = h("span", { class: "live", title: "The page is up to date" }, h("span", { class: "dot" }), h("span", { class: "live-word" }, "Live"));

/** The note, to be put on the page. */
export const notice = note;

/** A small sign for the header. */
export const sign = dot;

export function onRetry(callback) {
  retries.add(callback);
}

export function offRetry(callback) {
  retries.delete(callback);
}

function retryNow() {
  for (const callback of [...retries]) callback();
}

/** The server has answered. */
export function here() {
  if (awaySince === null) return;
  awaySince = null;
  clearInterval(ticker);
  note.hidden = true;
  text(message, "");
  dot.classList.remove("is-away");
  text(dot.lastChild, "Live");
}

/** The server has not answered; the next try is in `delay` ms. */
export function away(delay) {
  nextTry = Math.max(nextTry, Date.now() + delay);
  if (awaySince === null) {
    awaySince = Date.now();
    nextTry = Date.now() + delay;
    ticker = setInterval(tick, 500);
    note.hidden = false;
    text(message, "Disconnected from the server. What you see is from before. ");
    dot.classList.add("is-away");
    text(dot.lastChild, "Offline");
  }
  tick();
}

function tick() {
  const seconds = Math.ceil((nextTry - Date.now()) / 1000);
  text(countdown, seconds > 0 ? `Retrying in ${seconds} s.` : "Retrying …");
}
