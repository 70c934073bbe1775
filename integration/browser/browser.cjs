// Headless Chromium, driven by its DevTools protocol, and the check of a page.
"use strict";
const { spawn } = require("node:child_process");
const { mkdtempSync, readFileSync, rmSync, writeFileSync } = require("node:fs");
const { tmpdir } = require("node:os");
const { join } = require("node:path");

const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const SIZES = { wide: [1280, 900], narrow: [360, 740] };
const SCHEMES = ["light", "dark"];
const PAGE_BYTES_MAX = 100 * 1024;
const LOAD_MS = 60_000;

class Browser {
  static async start() {
    const profile = mkdtempSync(join(tmpdir(), "postdate-browser-"));
    const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
      "--no-first-run", "--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank"];
    const process = spawn("chromium", flags, { stdio: ["ignore", "ignore", "pipe"] });
    const url = await new Promise((resolve, reject) => {
      let said = "";
      process.stderr.on("data", (text) => {
        said += text;
        const found = said.match(/DevTools listening on (ws:\S+)/);
        if (found) resolve(found[1]);
      });
      process.on("exit", () => reject(new Error(`chromium ended: ${said}`)));
    });
    const socket = new WebSocket(url);
    await new Promise((resolve) => { socket.onopen = resolve; });
    return new Browser(process, profile, socket);
  }

  constructor(process, profile, socket) {
    Object.assign(this, { process, profile, socket, next: 0, calls: new Map(), loaded: new Set(), problems: [], accepts: true });
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
  }

  receive({ id, result, error, method, params }) {
    if (id) {
      const { resolve, reject } = this.calls.get(id);
      return error ? reject(new Error(error.message)) : resolve(result);
    }
    if (method === "Page.javascriptDialogOpening") {
      this.asked = params.message;
      this.call("Page.handleJavaScriptDialog", { accept: this.accepts });
    }
    const entry = params?.entry;
    // An answer 401 or 404 is logged as an error, too.
    if (method === "Log.entryAdded" && entry.level === "error" && entry.source !== "network") this.problems.push(entry.text);
    if (method === "Runtime.exceptionThrown") this.problems.push(params.exceptionDetails.text);
    if (method === "Page.lifecycleEvent" && params.name === "load") {
      this.loaded.add(params.loaderId);
      this.onLoad?.();
    }
  }

  call(method, params = {}) {
    const id = ++this.next;
    const message = { id, method, params, sessionId: this.session };
    return new Promise((resolve, reject) => {
      this.calls.set(id, { resolve, reject });
      this.socket.send(JSON.stringify(message));
    });
  }

  async open() {
    const { targetId } = await this.call("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.call("Target.attachToTarget", { targetId, flatten: true });
    this.session = sessionId;
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await this.call(`${domain}.enable`);
    await this.call("Page.setLifecycleEventsEnabled", { enabled: true });
  }

  async go(url) {
    const { loaderId, errorText } = await this.call("Page.navigate", { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
    // The load of this page, and not a late one of the page before.
    while (!this.loaded.has(loaderId)) await new Promise((resolve) => { this.onLoad = resolve; });
  }

  // Does what loads another page, and waits for that page.
  async load(action) {
    const before = this.loaded.size;
    await action();
    const loaded = (async () => {
      while (this.loaded.size === before) await new Promise((resolve) => { this.onLoad = resolve; });
    })();
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("no other page")), LOAD_MS).unref());
    await Promise.race([loaded, late]);
  }

  async evaluate(expression) {
    const { result, exceptionDetails } = await this.call("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  async stop() {
    this.process.removeAllListeners("exit");
    const ended = new Promise((resolve) => this.process.on("exit", resolve));
    this.process.kill();
    await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 2000))]);
    try {
      rmSync(this.profile, { recursive: true, force: true });
    } catch {
      // A child of Chromium still writes there. It is a temporary folder.
    }
  }
}

// Checks the open page in light and dark, wide and narrow. Answers with what is wrong, and writes screenshots.
// Without scripts, axe-core cannot run.
async function inspect(browser, folder, name, { scripts = true } = {}) {
  const found = [];
  for (const scheme of SCHEMES) {
    for (const [size, [width, height]] of Object.entries(SIZES)) {
      await browser.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
      await browser.call("Emulation.setEmulatedMedia", { features: [
        { name: "prefers-color-scheme", value: scheme },
        // A colour that changes slowly has a low contrast meanwhile.
        { name: "prefers-reduced-motion", value: "reduce" },
      ] });
      const problems = browser.problems.splice(0);
      if (scripts) {
        await browser.evaluate(axe);
        problems.push(...await browser.evaluate(`axe.run().then(({ violations }) => violations.map((one) =>
          one.id + ": " + one.help + " " + one.nodes.slice(0, 3).map((node) => node.html).join(" ")))`));
      }
      const wide = await browser.evaluate("document.documentElement.scrollWidth");
      if (wide > width) problems.push(`the page is ${wide} pixels wide`);
      const bytes = await browser.evaluate("document.documentElement.outerHTML.length");
      if (bytes > PAGE_BYTES_MAX) problems.push(`the page has ${bytes} bytes`);
      const file = `${name.replaceAll(/[^\w.-]/g, "_")}-${scheme}-${size}`;
      const { data } = await browser.call("Page.captureScreenshot", { captureBeyondViewport: size === "narrow" });
      writeFileSync(join(folder, `${file}.png`), Buffer.from(data, "base64"));
      found.push(...problems.map((problem) => `${file}: ${problem}`));
    }
  }
  const [width, height] = SIZES.wide;
  await browser.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
  return found;
}

module.exports = { Browser, inspect };
