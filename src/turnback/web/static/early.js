// Runs before the first paint, so that a page kept dark does not flash.
"use strict";
try {
  const kept = localStorage.getItem("turnback.theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // Storage may be switched off; the system's choice is used then.
}
