/** A request in other people's words: a shell line, a program, a test. */
import { here } from "./connections";
import { hasSessions, NEWEST } from "./eras";
import { info } from "./info";
import { toJson, type Json } from "./json";
import type { Params } from "./connection";
import type { Run } from "./runs";
import type { Expect, Kind } from "./saved";

/** What is taken along: a request, and what came of it or is to come of it. */
export interface Taken {
  kind: Kind;
  target: string;
  args: Params;
  name?: string;
  run?: Run;
  expect?: Expect;
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
/** What the page looks at in a result, and `runner call` does not print: it has the contract's value alone. */
const wantsMessage = ({ expect }: Taken): boolean => expect?.text !== undefined || expect?.schema !== undefined;
/** Whether a test of it is one of `runner call`. */
const byShell = (taken: Taken): boolean => ownTool(taken) && !wantsMessage(taken);

export const EXPORTS: Export[] = [
  { id: "shell", title: "runner call", fits: ownTool, make: shell },
  { id: "curl", title: "curl", fits: always, make: curl },
  { id: "python", title: "Python", fits: always, make: python },
  { id: "pytest", title: "pytest", fits: always, make: (taken) => pytestOf([taken]) },
];

export function takenOf(run: Run): Taken {
  return { kind: "tool", target: run.tool, args: run.args, run };
}

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
  const era = here.value.era.value;
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
  const own = list.filter(byShell);
  const others = list.filter((taken) => !byShell(taken));
  const names = new Map<string, number>();
  const tests = list.map((taken) => (byShell(taken) ? testOfFile(taken, names) : testOfServer(taken, names)));
  return [
    list.some(ownTool) ? '"""Made in the Playground. Change FILE to the path of the tool file."""' : '"""Made in the Playground."""',
    "",
    ...(others.length > 0 ? ["import asyncio"] : []),
    ...(own.length > 0 ? ["import json"] : []),
    ...(list.some((taken) => taken.expect?.text?.startsWith("/")) ? ["import re"] : []),
    ...(own.length > 0 ? ["import subprocess"] : []),
    ...(list.some((taken) => taken.expect?.artifact !== undefined) ? ["from fnmatch import fnmatch"] : []),
    ...(others.length > 0 || list.some((taken) => taken.expect?.schema !== undefined) ? [""] : []),
    ...(list.some((taken) => taken.expect?.schema !== undefined) ? ["import jsonschema"] : []),
    ...(others.length > 0 ? ["from fastmcp import Client"] : []),
    "",
    "",
    tests.join("\n\n\n"),
    "",
  ].join("\n");
}

function testName(taken: Taken, ending: string, names: Map<string, number>): string {
  const base = `test_${(taken.name ?? taken.target).replaceAll(/\W+/g, "_").replaceAll(/^_+|_+$/g, "").toLowerCase()}_${ending}`;
  const before = names.get(base) ?? 0;
  names.set(base, before + 1);
  return before === 0 ? base : `${base}_${before + 1}`;
}

function hasFailed(taken: Taken): boolean {
  return taken.expect?.status === "failed" || (taken.expect?.status === undefined && taken.run !== undefined && taken.run.status !== "done");
}

function testOfFile(taken: Taken, names: Map<string, number>): string {
  const failed = hasFailed(taken);
  return [
    `def ${testName(taken, failed ? "fails_as_it_did" : "answers", names)}() -> None:`,
    `    arguments = ${pythonValue(taken.args as Json)}`,
    "",
    "    done = subprocess.run(",
    `        ["runner", "call", "FILE", ${pythonValue(taken.target)}, "--args", json.dumps(arguments), "--json"],`,
    "        capture_output=True,",
    "        text=True,",
    "        check=False,",
    "    )",
    "",
    failed ? "    assert done.returncode != 0, done.stdout" : "    assert done.returncode == 0, done.stderr",
    ...(failed || taken.run === undefined ? [] : [`    assert json.loads(done.stdout)["results"] == ${pythonValue(resultsOf(taken.run))}`]),
    ...(taken.expect?.artifact === undefined ? [] : [`    names = [each["name"] for each in json.loads(done.stdout).get("artifacts") or []]`, `    assert any(fnmatch(name, ${pythonValue(taken.expect.artifact)}) for name in names), names`]),
  ].join("\n");
}

/** The tool file as a client starts it. */
const FILE = { mcpServers: { tools: { command: "runner", args: ["serve", "FILE", "--transport", "stdio"] } } };

function testOfServer(taken: Taken, names: Map<string, number>): string {
  const failed = hasFailed(taken);
  const tool = taken.kind === "tool";
  return [
    `def ${testName(taken, failed ? "fails_as_it_did" : "answers", names)}() -> None:`,
    "    async def asked():",
    `        async with Client(${ownTool(taken) ? pythonValue(FILE) : pythonValue(address())}) as client:`,
    `            return await ${tool ? pythonCall(taken).replace(/\)$/, ", raise_on_error=False)") : pythonCall(taken)}`,
    "",
    "    result = asyncio.run(asked())",
    "",
    ...(tool ? [`    assert result.is_error is ${failed ? "True" : "False"}, result.content`] : ["    assert result"]),
    ...(tool && taken.expect?.text !== undefined ? ['    text = "\\n".join(block.text for block in result.content if block.type == "text")'] : []),
    ...textAssertion(taken, tool ? "text" : "str(result)"),
    ...(taken.expect?.artifact === undefined ? [] : [`    names = [each.get("name", "") for each in (result.structured_content or {}).get("artifacts") or []]`, `    assert any(fnmatch(name, ${pythonValue(taken.expect.artifact)}) for name in names), names`]),
    ...(taken.expect?.schema === undefined || !tool ? [] : [`    jsonschema.validate(result.structured_content, ${pythonValue(taken.expect.schema)})`]),
  ].join("\n");
}

function textAssertion(taken: Taken, where: string): string[] {
  const wanted = taken.expect?.text;
  if (wanted === undefined) return [];
  const pattern = /^\/(.+)\/([imsu]*)$/.exec(wanted);
  if (pattern === null) return [`    assert ${pythonValue(wanted)} in ${where}`];
  const flags = [...(pattern[2] ?? "")].filter((flag) => "ims".includes(flag)).map((flag) => `re.${flag.toUpperCase()}`).join(" | ");
  return [`    assert re.search(${pythonValue(pattern[1] ?? "")}, ${where}${flags === "" ? "" : `, ${flags}`})`];
}

function resultsOf(run: Run): Json {
  const meta = run.result?.["_meta"] as { [key: string]: Json } | undefined;
  const contract = (meta?.["toolcell/result"] ?? run.result?.["structuredContent"] ?? {}) as { [key: string]: Json };
  return contract["results"] ?? null;
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
