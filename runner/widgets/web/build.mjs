// Build the widget pages, the bridge, the host side and its proxy page from the sources beside this file.
// usage: node build.mjs [FOLDER]     FOLDER: where to write (the folder above)
//
// The same sources give the same bytes: nothing of the machine or the time gets in.

import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, ".."));
const MAX_PAGE_BYTES = 60_000;
// With a parser that takes any text in time, and the names of entities.
const MAX_MARKDOWN_BYTES = 140_000;

const PAGES = {
  "chat-view": "Conversation",
  "dashboard-widget": "Dashboard",
  "search-results": "Search results",
  "pizzaz-table": "Table",
  "kitchen-sink-lite": "Kitchen sink",
  "pizzaz-carousel": "Carousel",
  "pizzaz-gallery": "Gallery",
  "pizzaz-markdown": "Document",
  "solar-system": "Solar system",
};

async function bundled(entry, format = "iife") {
  const { outputFiles } = await build({
    absWorkingDir: here,
    bundle: true,
    charset: "utf8",
    entryPoints: [entry],
    format,
    legalComments: "none",
    logLevel: "warning",
    minify: true,
    target: "es2022",
    write: false,
  });
  return outputFiles[0].text.trim();
}

function fill(template, values) {
  return template.replace(/\{\{(\w+)\}\}/g, (_, name) => values[name]);
}

// In a script element these words would end it, or begin a comment of HTML.
function embedded(script) {
  return script.replace(/<\/(script)/gi, "<\\/$1").replace(/<!--/g, "<\\!--");
}

async function style(name) {
  const { outputFiles } = await build({
    bundle: true,
    charset: "utf8",
    logLevel: "warning",
    minify: true,
    stdin: { contents: `@import "./base.css"; @import "./${name}.css";`, loader: "css", resolveDir: join(here, "styles") },
    target: "es2022",
    write: false,
  });
  return outputFiles[0].text.trim();
}

const page = await readFile(join(here, "page.html"), "utf8");
await mkdir(join(target, "pages"), { recursive: true });
for (const [name, title] of Object.entries(PAGES)) {
  const script = embedded(await bundled(`pages/${name}.ts`));
  const html = fill(page, { title, style: await style(name), script });
  const bytes = Buffer.byteLength(html);
  const most = name === "pizzaz-markdown" ? MAX_MARKDOWN_BYTES : MAX_PAGE_BYTES;
  if (bytes > most) throw new Error(`${name}.html has ${bytes} bytes; at most ${most} are allowed`);
  await writeFile(join(target, "pages", `${name}.html`), html);
}
await writeFile(join(target, "bridge.js"), `${await bundled("bridge.ts")}\n`);
await writeFile(join(target, "host.js"), `${await bundled("host.ts", "esm")}\n`);
const proxy = await readFile(join(here, "proxy.html"), "utf8");
await writeFile(join(target, "proxy.html"), fill(proxy, { script: embedded(await bundled("proxy.ts")) }));
