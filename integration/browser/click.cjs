// Uses the console as a person does: clicks, types, and reads what the pages say. Fails at the first step that
// does not work, and on what `inspect` finds on the pages that steps look at.
//   node click.cjs FOLDER URL < steps      screenshots go to FOLDER
// PREFIX=/a/b serves the console behind this path. SCRIPTS=off turns JavaScript off.
//
// | line | does |
// |---|---|
// | go /path | opens the page |
// | click text | clicks the visible button or link with this text, and waits for the next page |
// | press text | the same for one that loads no page |
// | dismiss text | the same, and says no to the question |
// | asked text | the last question had this text |
// | fill label = text | types into the field, or chooses the option, of this label |
// | see text, gone text | waits until the page has it, or has it no more |
// | unseen text | the page has it not |
// | at /path | the address of the page |
// | post 403 /path a=b | the status of a POST of the page itself, with its cookie and this form |
// | look name | inspects the page in light and dark, wide and narrow |
"use strict";
const { mkdirSync, readFileSync } = require("node:fs");
const http = require("node:http");
const { Browser, inspect } = require("./browser.cjs");

const [folder, server] = process.argv.slice(2);
const prefix = process.env.PREFIX ?? "";
const scripts = process.env.SCRIPTS !== "off";
const WAIT_MS = 60_000;

// A proxy that removes the prefix, as an ingress does.
async function proxy() {
  const to = new URL(server);
  const listener = http.createServer((request, response) => {
    if (!request.url.startsWith(prefix + "/")) return response.writeHead(404).end();
    const { method, headers } = request;
    const path = request.url.slice(prefix.length);
    const onward = http.request({ host: to.hostname, port: to.port, path, method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    request.pipe(onward);
  });
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  return { listener, base: `http://127.0.0.1:${listener.address().port}${prefix}` };
}

const quoted = JSON.stringify;

// Runs in the page: the visible element with a text, or the field of a label.
const FIND = `
  const isVisible = (element) => element.checkVisibility({ visibilityProperty: true });
  const textOf = (element) => element.innerText.replace(/\\s+/g, " ").trim();
  const button = (text) => [...document.querySelectorAll("button, a, input[type=checkbox]")]
    .filter(isVisible).find((element) => textOf(element) === text || element.id === text);
  const field = (text) => {
    const label = [...document.querySelectorAll("label")].filter(isVisible).find((label) =>
      [...label.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim() === text));
    return label?.querySelector("input, select");
  };`;

class Visitor {
  constructor(browser, base) {
    Object.assign(this, { browser, base, found: [] });
  }

  inPage(code) {
    return this.browser.evaluate(`(() => { ${FIND} ${code} })()`);
  }

  async place(text) {
    const place = await this.inPage(`
      const element = button(${quoted(text)});
      if (!element) return null;
      element.scrollIntoView({ block: "center" });
      const { x, y, width, height } = element.getBoundingClientRect();
      return [x + width / 2, y + height / 2];`);
    if (!place) throw new Error(`no button or link ${quoted(text)}`);
    return place;
  }

  // Presses and releases the mouse over the element, so a covered one does not work.
  async press(text) {
    const [x, y] = await this.place(text);
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.browser.call("Input.dispatchMouseEvent", { type, x, y, button: "left", clickCount: 1 });
    }
  }

  fill(label, text) {
    return this.inPage(`
      const found = field(${quoted(label)});
      if (!found) throw new Error("no field " + ${quoted(label)});
      const option = [...found.options ?? []].find((option) => option.text === ${quoted(text)});
      found.value = option ? option.value : ${quoted(text)};
      found.dispatchEvent(new Event("change", { bubbles: true }));`);
  }

  text() {
    // Without the options of a list that is closed.
    return this.inPage(`
      const texts = [...document.querySelectorAll("main, footer > span")].map(textOf);
      const labels = [...document.querySelectorAll("footer label")].filter(isVisible);
      const own = labels.flatMap((label) => [...label.childNodes].map((node) => node.data ?? ""));
      return [...texts, ...own, document.title].join(" ");`);
  }

  async waitFor(text, isThere) {
    const end = Date.now() + WAIT_MS;
    let said = null;
    while (Date.now() < end) {
      // A page that is just replaced has no text.
      said = await this.text().catch(() => null);
      if (said !== null && said.includes(text) === isThere) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`the page is ${quoted(said)}`);
  }

  async post(status, path, form) {
    const [url, fields] = [quoted(prefix + path), quoted(form)];
    const found = await this.browser.evaluate(`
      fetch(${url}, { method: "POST", body: new URLSearchParams(${fields}) }).then((answer) => answer.status)`);
    if (found !== Number(status)) throw new Error(`the status is ${found}`);
  }

  async at(path) {
    const place = await this.browser.evaluate("location.href");
    if (place !== this.base + path) throw new Error(`the page is ${place}`);
  }

  async dismiss(text) {
    this.browser.accepts = false;
    await this.press(text);
    this.browser.accepts = true;
  }

  async step(line) {
    const [, verb, rest] = line.match(/^(\w+) (.*)$/);
    const { browser } = this;
    switch (verb) {
      case "go": return browser.go(this.base + rest);
      case "click": return browser.load(() => this.press(rest));
      case "press": return this.press(rest);
      case "dismiss": return this.dismiss(rest);
      case "fill": return this.fill(...rest.split(" = "));
      case "see": return this.waitFor(rest, true);
      case "gone": return this.waitFor(rest, false);
      case "at": return this.at(rest);
      case "post": return this.post(...rest.split(" "));
      case "unseen":
        if ((await this.text()).includes(rest)) throw new Error("the page has it");
        return undefined;
      case "asked":
        if (browser.asked !== rest) throw new Error(`it asked ${quoted(browser.asked)}`);
        return undefined;
      case "look": return this.found.push(...await inspect(browser, folder, rest, { scripts }));
      default: throw new Error("no such step");
    }
  }
}

async function main() {
  mkdirSync(folder, { recursive: true });
  const steps = readFileSync(0, "utf8").split("\n").map((line) => line.trim()).filter((line) => line);
  const { listener, base } = await proxy();
  const browser = await Browser.start();
  const visitor = new Visitor(browser, base);
  try {
    await browser.open();
    if (!scripts) await browser.call("Emulation.setScriptExecutionDisabled", { value: true });
    for (const step of steps) {
      try {
        await visitor.step(step);
      } catch (error) {
        await inspect(browser, folder, "failed", { scripts: false });
        visitor.found.push(`${step}: ${error.message}`);
        break;
      }
    }
  } finally {
    await browser.stop();
    listener.closeAllConnections();
    listener.close();
  }
  visitor.found.forEach((problem) => console.log(problem));
  console.log(`${steps.length} steps, ${visitor.found.length} problems`);
  process.exit(visitor.found.length ? 1 : 0);
}

main();
