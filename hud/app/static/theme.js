// Loaded before the page is drawn, so that a chosen theme does not flash the other one.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is closed to us: the system's theme holds */ }
