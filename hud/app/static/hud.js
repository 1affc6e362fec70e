// Everything here only adds to pages that are complete without it: a theme switch, copying, live update.
"use strict";

function addTheme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => {
    button.textContent = dark() ? "Light theme" : "Dark theme";
  };
  button.hidden = false;
  label();
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    label();
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch { /* it lasts for this page only */ }
  });
}

function addCopying(within) {
  if (!navigator.clipboard) return;
  for (const command of within.querySelectorAll("pre.command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    });
    command.after(button);
  }
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.getElementById("main");
  const open = [...main.querySelectorAll("details")].map((part) => part.open);
  const focused = document.activeElement && main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  main.replaceChildren(...fresh.getElementById("main").childNodes);
  main.querySelectorAll("details").forEach((part, place) => {
    part.open = open[place] ?? part.open;
  });
  if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  document.title = fresh.title;
  addCopying(main);
  const verdict = document.getElementById("verdict");
  if (verdict) verdict.classList.add("fresh");
}

function followEvents() {
  const address = document.body.dataset.events;
  if (!address || !window.EventSource) return;
  const events = new EventSource(address);
  events.addEventListener("changed", () => void refresh());
}

addTheme();
addCopying(document);
followEvents();
