// Shows times in a chosen zone, refreshes the page, asks before a change, and continues a large one. All
// pages work without it.
"use strict";

const zones = document.getElementById("zone");
const refresh = document.getElementById("refresh");
const REFRESH_MS = 5000;
const CONTINUE_MS = 2000;

function saved(name) {
  try { return localStorage.getItem("postdate-" + name); } catch { return null; }
}

function save(name, value) {
  try { localStorage.setItem("postdate-" + name, value); } catch { /* Only lost for the next page. */ }
}

function showTimes() {
  const zone = zones.value;
  const format = new Intl.DateTimeFormat("sv-SE", {
    timeZone: zone, dateStyle: "short", timeStyle: "medium",
  });
  for (const time of document.querySelectorAll("time")) {
    time.dataset.utc ??= time.textContent;
    time.textContent = zone === "UTC" ? time.dataset.utc : format.format(new Date(time.dateTime)) + " " + zone;
    time.title = zone === "UTC" ? "" : time.dataset.utc;
  }
}

function offerZones() {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const names = new Set(["UTC", own, ...Intl.supportedValuesOf("timeZone")]);
  for (const name of names) zones.add(new Option(name));
  const wanted = saved("zone");
  zones.value = names.has(wanted) ? wanted : "UTC";
  zones.addEventListener("change", () => { save("zone", zones.value); showTimes(); });
}

function isFormInUse() {
  const fields = [...document.querySelectorAll("main input")];
  return document.activeElement?.closest("main form") || fields.some((field) => field.value !== field.defaultValue);
}

// A page with a form in use, or in a hidden tab, stays as it is. So does a page that shows a payload,
// because each request for it writes a line of the audit log.
async function reload() {
  if (!refresh.checked || document.hidden || document.querySelector("main pre") || isFormInUse()) return;
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const main = page.querySelector("main");
    if (main && !isFormInUse()) {
      document.querySelector("main").replaceChildren(...main.childNodes);
      showTimes();
    }
  } catch { /* The next attempt follows. */ }
}

function confirmChanges() {
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
}

// A change of many messages has parts of some seconds. The next one starts after a moment, unless an operator stops it.
function continueChange() {
  const form = document.querySelector("form[data-continue]");
  if (!form) return;
  const timer = setTimeout(() => form.submit(), CONTINUE_MS);
  document.getElementById("stop").addEventListener("click", (event) => {
    clearTimeout(timer);
    window.stop();
    event.target.disabled = true;
    event.target.textContent = "Stopped";
    event.target.nextElementSibling.hidden = true;
  });
}

if (zones && refresh) {
  for (const element of document.querySelectorAll(".scripted")) element.hidden = false;
  offerZones();
  showTimes();
  refresh.checked = saved("refresh") === "on";
  refresh.addEventListener("change", () => save("refresh", refresh.checked ? "on" : "off"));
  setInterval(reload, REFRESH_MS);
  confirmChanges();
  continueChange();
}
