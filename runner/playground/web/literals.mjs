/**
 * Finds what people read on the page and no other language could say: text that stands outside src/texts.
 *
 * usage: node literals.mjs
 *
 * In components that is text between tags, text that an expression between tags gives, and attributes that are shown or
 * read out. Everywhere it is a text of an Error, and any literal of three words or more.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { parseSync } from "vite";

const SOURCES = join(import.meta.dirname, "src");
const SAID = new Set(["aria-label", "title", "placeholder", "alt", "label", "what", "hint", "yes", "no", "problem", "why"]);
const LETTERS = /\p{L}{2,}/u;
const SENTENCE = /\p{L}{2,}[,:;]? \p{L}+[,:;]? \p{L}/u;

/** What is the same in every language: names, formats, and examples of what is typed. */
const NAMES = [
  "JSON", "runner call", "curl", "Python", "TypeScript", "mcp.json", "pytest", "MCP Apps", "ChatGPT Apps", "820 px", "390 px",
  "https://host.example/mcp", "my-mcp-server --verbose", "2026-01-31T12:00:00Z", "Ctrl K", "Ctrl ↵", "http://127.0.0.1:8000/?key=…",
  "runner serve", "runner dev", "playground_frames_url", "MCP", "ms", "HTTP", "files.zip", "true", "false",
].sort((one, other) => other.length - one.length);

/** Texts that are not shown: they go to a server, a widget or another program, or name what is kept or looked for. */
const SENT = {
  "canvas/widget.tsx": ["context for the model", "a person is being asked about another address", "the person at the page does not want this widget to open addresses", "a modal of this widget is open already"],
  "canvas/widget_files.tsx": ["the file has", "; this server takes", "the person at the page did not want this file kept", "there is no file", "of this widget or of its call"],
  "canvas/workbook.ts": ["left"],
  "model/chat.ts": ["The person did not allow this call.", "The person cancelled before this call had ended.", "There is no tool", "The arguments are no JSON object:", ", which the person sees]", "The tool asked for more than could be answered."],
  "model/connection.ts": ["nobody answers questions here", "left by the person at the page"],
  "model/exports.ts": true,
  "model/har.ts": ["(said by the server)"],
  "model/questions.ts": ["this page does not answer", "too many questions wait for an answer already", "the person at the page refused"],
  "model/seen.ts": ["characters of base64)"],
  "model/widget_calls.ts": ["widgets ask first", "the person at the page did not allow this call of"],
  "model/widget_states.ts": ["the state of a widget may have", "characters of JSON, this one has", "; keep less, or keep it on the server", "this browser keeps nothing for this page, or has no room left; the state lasts as long as the widget"],
  "views/palette.tsx": ["input, textarea, select, [contenteditable]"],
  "views/tool_list.tsx": ["[role=tabpanel] :is(input, select, textarea, button):not(:disabled)"],
};

function bare(text) {
  return NAMES.reduce((left, name) => left.replaceAll(name, " "), text);
}

/** Yield the texts that an expression can give, as far as they stand in it. */
function* given(node) {
  switch (node?.type) {
    case "Literal":
      if (typeof node.value === "string") yield [node, node.value];
      break;
    case "TemplateLiteral":
      for (const each of node.quasis) yield [each, each.value.cooked];
      for (const each of node.expressions) yield* given(each);
      break;
    case "ConditionalExpression":
      yield* given(node.consequent);
      yield* given(node.alternate);
      break;
    case "LogicalExpression":
      yield* given(node.left);
      yield* given(node.right);
      break;
    case "BinaryExpression":
      if (node.operator === "+") {
        yield* given(node.left);
        yield* given(node.right);
      }
      break;
    case "ParenthesizedExpression":
    case "JSXExpressionContainer":
      yield* given(node.expression);
  }
}

function* walk(node, above) {
  if (node === null || typeof node !== "object") return;
  if (Array.isArray(node)) {
    for (const each of node) yield* walk(each, above);
    return;
  }
  if (typeof node.type !== "string") return;
  yield [node, above];
  for (const [key, value] of Object.entries(node)) if (key !== "parent") yield* walk(value, [...above, node]);
}

/** Return what people would read in one file, each with its line. */
function found(path, source) {
  const { program, errors } = parseSync(path, source);
  if (errors.length > 0) throw new Error(`${path}: ${errors[0].message}`);
  const sent = SENT[relative(SOURCES, path)] ?? [];
  const seen = new Map();
  const note = (node, text, pattern) => {
    if (sent !== true && !sent.includes(text.trim()) && pattern.test(bare(text))) seen.set(node.start, text.trim());
  };
  for (const [node, above] of walk(program, [])) {
    const parent = above.at(-1);
    if (node.type === "JSXText") note(node, node.value, LETTERS);
    if (node.type === "JSXExpressionContainer" && parent?.type !== "JSXAttribute") for (const [at, text] of given(node)) note(at, text, LETTERS);
    if (node.type === "JSXAttribute") {
      const name = node.name.name;
      const isComponent = /^[A-Z]/.test(parent?.name?.name ?? "");
      if (SAID.has(name) || (name === "name" && isComponent)) for (const [at, text] of given(node.value)) note(at, text, LETTERS);
    }
    if (node.type === "NewExpression" && /Error$/.test(node.callee.name ?? "")) for (const [at, text] of given(node.arguments[0])) note(at, text, LETTERS);
    const inClass = above.some((each) => each.type === "JSXAttribute" && ["class", "style", "sandbox", "rel"].includes(each.name.name));
    if ((node.type === "Literal" || node.type === "TemplateElement") && !inClass) {
      const text = node.type === "Literal" ? node.value : node.value.cooked;
      if (typeof text === "string") note(node, text, SENTENCE);
    }
  }
  return [...seen].map(([start, text]) => `${relative(SOURCES, path)}:${source.slice(0, start).split("\n").length}: ${JSON.stringify(text)}`);
}

const faults = readdirSync(SOURCES, { recursive: true })
  .filter((name) => /\.tsx?$/.test(name) && !name.startsWith("texts"))
  .sort()
  .flatMap((name) => found(join(SOURCES, name), readFileSync(join(SOURCES, name), "utf8")));
if (faults.length > 0) {
  console.error(`These texts stand outside src/texts, where no other language can say them:\n${faults.join("\n")}`);
  process.exit(1);
}
