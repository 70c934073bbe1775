// Shows times in a chosen zone, refreshes the page, and asks before a change. All pages work without it.
"use strict";

const zones = document.getElementById("zone");
const refresh = document.getElementById("refresh");
const REFRESH_MS = 5000;

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

// A page with a form in use, or in a hidden tab, stays as it is. So does a page that shows a payload,
// because each request for it writes a line of the audit log.
async function reload() {
  const active = document.activeElement;
  if (!refresh.checked || document.hidden || document.querySelector("main pre") || (active && active.closest("main form"))) return;
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const main = page.querySelector("main");
    if (main && !(document.activeElement && document.activeElement.closest("main form"))) {
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

if (zones && refresh) {
  for (const element of document.querySelectorAll(".scripted")) element.hidden = false;
  offerZones();
  showTimes();
  refresh.checked = saved("refresh") === "on";
  refresh.addEventListener("change", () => save("refresh", refresh.checked ? "on" : "off"));
  setInterval(reload, REFRESH_MS);
  confirmChanges();
}
