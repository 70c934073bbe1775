// Opens pages in headless Chromium, in light and dark, wide and narrow. Fails on errors of the console, on
// violations that axe-core finds, and on pages that are too wide or too large.
//   node look.cjs FOLDER URL PATH...      screenshots go to FOLDER; COOKIE=name=value logs in
"use strict";
const { mkdirSync } = require("node:fs");
const { Browser, inspect } = require("./browser.cjs");

const [folder, base, ...paths] = process.argv.slice(2);

async function main() {
  mkdirSync(folder, { recursive: true });
  const browser = await Browser.start();
  const found = [];
  try {
    await browser.open();
    if (process.env.COOKIE) {
      const [name, value] = process.env.COOKIE.split("=");
      await browser.call("Network.setCookie", { name, value, url: base });
    }
    for (const path of paths) {
      await browser.go(base + path);
      found.push(...await inspect(browser, folder, path));
    }
  } finally {
    await browser.stop();
  }
  found.forEach((problem) => console.log(problem));
  console.log(`${paths.length} pages, ${found.length} problems`);
  process.exit(found.length ? 1 : 0);
}

main();
