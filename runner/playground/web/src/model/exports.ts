/** A request in other people's words: a shell line, a program, a test. */
import { here } from "./connections";
import { hasSessions, NEWEST } from "./eras";
import { info } from "./info";
import { isObject, toJson, type Json } from "./json";
import type { Params } from "./connection";
import type { Run } from "./runs";
import type { Kind } from "./saved";

/** A request, and what came of it. */
export interface Taken {
  kind: Kind;
  target: string;
  args: Params;
  name?: string;
  run?: Run;
}

export interface Export {
  id: string;
  title: string;
  /** Whether there is such a form of it. */
  fits: (taken: Taken) => boolean;
  make: (taken: Taken) => string;
}

const always = (): boolean => true;
/** Whether it is asked of the tool files that are served here. */
const ownTool = (taken: Taken): boolean => taken.kind === "tool" && info.value?.kind === "tools";
export const EXPORTS: Export[] = [
  { id: "shell", title: "runner call", fits: ownTool, make: shell },
  { id: "curl", title: "curl", fits: always, make: curl },
  { id: "python", title: "Python", fits: always, make: python },
  { id: "pytest", title: "pytest", fits: always, make: (taken) => pytestOf([taken]) },
];

const address = (): string => `${location.origin}/mcp`;

function shell(taken: Taken): string {
  return `runner call FILE ${quoted(taken.target)} --args ${quoted(toJson(taken.args))}`;
}

function asked({ kind, target, args }: Taken): { method: string; params: Params; name: string } {
  if (kind === "resource") return { method: "resources/read", params: { uri: target }, name: target };
  return { method: kind === "tool" ? "tools/call" : "prompts/get", params: { name: target, arguments: args }, name: target };
}

function curl(taken: Taken): string {
  const { method, params, name } = asked(taken);
  const login = info.value?.login ? ['-H "authorization: Bearer $TOKEN"'] : [];
  const types = "-H 'content-type: application/json' -H 'accept: application/json, text/event-stream'";
  const era = here.value.era;
  if (hasSessions(era)) {
    const greeting = { jsonrpc: "2.0", id: 1, method: "initialize", params: { protocolVersion: era, capabilities: {}, clientInfo: { name: "curl", version: "1" } } };
    const line = (body: unknown, ...more: string[]): string => [`curl -s ${quoted(address())}`, types, ...login, ...more, `--data ${quoted(toJson(body))}`].join(" \\\n  ");
    const session = `-H "mcp-session-id: $SESSION" -H 'mcp-protocol-version: ${era}'`;
    return [
      `SESSION=$(${line(greeting, "-o /dev/null -D -")} | tr -d '\\r' | awk 'tolower($1) == "mcp-session-id:" {print $2}')`,
      line({ jsonrpc: "2.0", method: "notifications/initialized" }, session),
      line({ jsonrpc: "2.0", id: 2, method, params }, session),
    ].join("\n");
  }
  const prefix = "io.modelcontextprotocol/";
  const meta = { [`${prefix}protocolVersion`]: NEWEST, [`${prefix}clientInfo`]: { name: "curl", version: "1" }, [`${prefix}clientCapabilities`]: {} };
  const lines = [
    `curl ${quoted(address())}`,
    types,
    `-H 'mcp-protocol-version: ${NEWEST}' -H 'mcp-method: ${method}'`,
    `-H ${quoted(`mcp-name: ${name}`)}`,
    ...login,
    `--data ${quoted(toJson({ jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: meta } }))}`,
  ];
  return lines.join(" \\\n  ");
}

function pythonCall({ kind, target, args }: Taken): string {
  if (kind === "resource") return `client.read_resource(${pythonValue(target)})`;
  return kind === "prompt" ? `client.get_prompt(${pythonValue(target)}, ${pythonValue(args as Json)})` : `client.call_tool(${pythonValue(target)}, ${pythonValue(args as Json)})`;
}

function python(taken: Taken): string {
  return [
    "import asyncio",
    "",
    "from fastmcp import Client",
    "",
    "",
    "async def main() -> None:",
    `    async with Client(${pythonValue(address())}) as client:`,
    `        result = await ${pythonCall(taken)}`,
    `        print(${taken.kind === "tool" ? "result.data" : "result"})`,
    "",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

/** One file with a test for each request. */
export function pytestOf(list: readonly Taken[]): string {
  const names = new Map<string, number>();
  return [
    list.some(ownTool) ? '"""Made in the Playground. Change FILE to the path of the tool file."""' : '"""Made in the Playground."""',
    "",
    "import asyncio",
    "",
    "from fastmcp import Client",
    ...list.flatMap((taken) => ["", "", ...caseOf(taken, names)]),
    "",
  ].join("\n");
}

/** The tool file as a client starts it. */
const FILE = { mcpServers: { tools: { command: "runner", args: ["serve", "FILE", "--transport", "stdio"] } } };

function caseOf(taken: Taken, names: Map<string, number>): string[] {
  const failed = taken.run !== undefined && taken.run.status !== "done";
  const tool = taken.kind === "tool";
  const base = `test_${(taken.name ?? taken.target).replaceAll(/\W+/g, "_").replaceAll(/^_+|_+$/g, "").toLowerCase()}_${failed ? "fails_as_it_did" : "answers"}`;
  const before = names.get(base) ?? 0;
  names.set(base, before + 1);
  return [
    `def ${before === 0 ? base : `${base}_${before + 1}`}() -> None:`,
    "    async def asked():",
    `        async with Client(${pythonValue(ownTool(taken) ? FILE : address())}) as client:`,
    `            return await ${tool ? pythonCall(taken).replace(/\)$/, ", raise_on_error=False)") : pythonCall(taken)}`,
    "",
    "    result = asyncio.run(asked())",
    "",
    tool ? `    assert result.is_error is ${failed ? "True" : "False"}, result.content` : "    assert result",
    ...(failed || taken.run === undefined ? [] : [expectation(taken.run)]),
  ];
}

/** The value of the result alone: what stands beside it, such as ids of files, is new in each call. */
function expectation(run: Run): string {
  const structured = run.result?.["structuredContent"];
  const key = isObject(structured) ? ["results", "result"].find((each) => structured[each] !== undefined) : undefined;
  return key === undefined || !isObject(structured) ? `    assert result.structured_content == ${pythonValue(structured ?? null)}` : `    assert result.structured_content["${key}"] == ${pythonValue(structured[key] ?? null)}`;
}

/** A word for a POSIX shell. */
export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A value as a Python literal. */
export function pythonValue(value: Json): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return toJson(value).replaceAll("\u007f", "\\x7f");
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${pythonValue(key)}: ${pythonValue(each)}`).join(", ")}}`;
  return toJson(value);
}
