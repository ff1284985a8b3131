/**
 * Tasks of servers: calls that go on while nobody waits for them. Both ways are spoken: of 2025-11-25 with sessions
 * (`tasks/result`, `tasks/list`), and the extension of the era without (`tasks/get` has the result, `tasks/update` answers).
 *
 * Source: MCP 2025-11-25, "Tasks"; SEP-2663.
 */
import { signal } from "@preact/signals";
import { Connection, McpError, TASKS, type Params } from "./connection";
import { saidOf } from "./connections";
import { hasSessions } from "./eras";
import { isObject } from "./json";
import { listAll } from "./mcp";
import { ask } from "./questions";
import { T } from "../texts/texts";

export interface Task {
  id: string;
  connection: Connection;
  tool: string;
  /** The run that it is; empty for a task of another client. */
  run: string;
  status: string;
  message: string;
  created: string;
  progress: number | null;
}

export const tasks = signal<Task[]>([]);
export const tasksProblem = signal<string | null>(null);

/** Somebody cancelled the task of a call. */
export class TaskCancelled extends McpError {}

const MOST = 200;
const POLL_MS = 1000;
const MOST_POLL_MS = 10_000;
const OPEN = ["working", "input_required", "submitted"];
const WITH_TASKS = { task: true } as const;

export function isOpen(task: Pick<Task, "status">): boolean {
  return OPEN.includes(task.status);
}

/** Whether a server says that it knows of tasks. */
export function hasTasks(connection: Connection): boolean {
  const able = connection.about.value?.capabilities ?? {};
  if (hasSessions(connection.era.value)) return isObject(able["tasks"]);
  return isObject(able["extensions"]) && isObject(able["extensions"][TASKS]);
}

/** Whether a server behind the proxy said to that that it has the tasks of 2025-11-25, which other versions lack. */
export function hasHandshakeTasks(connection: Connection): boolean {
  return isObject(saidOf(connection)?.capabilities["tasks"]);
}

/** The task that an answer to a call is; null where it is a result. */
export function begunTask(result: Params): Params | null {
  if (result["resultType"] === "task") return result;
  return isObject(result["task"]) && typeof result["task"]["taskId"] === "string" ? result["task"] : null;
}

/** Stay with a task until it has ended, and return the result of its call. Throws `McpError` where there is none. */
export async function followed(connection: Connection, begun: Params, of: { tool: string; run: string }, told: (task: Task) => void, signal: AbortSignal): Promise<Params> {
  const id = String(begun["taskId"]);
  let task = note(connection, begun, of);
  const answered = new Set<string>();
  told(task);
  for (;;) {
    await pause(Number(begun["pollIntervalMs"] ?? begun["pollInterval"] ?? POLL_MS), signal);
    if (signal.aborted) {
      await cancelTask(task);
      throw new TaskCancelled(T.session.taskCancelled, -32000);
    }
    const said = await request(connection, "tasks/get", { taskId: id });
    const news = note(connection, said, of);
    if (news.status !== task.status || news.message !== task.message) told(news);
    task = news;
    if (isOpen(task)) {
      if (task.status === "input_required") await answer(connection, id, said, answered);
      continue;
    }
    if (task.status === "cancelled") throw new TaskCancelled(T.session.taskCancelled, -32000);
    if (isObject(said["error"])) throw new McpError(String(said["error"]["message"] ?? T.session.taskFailed), Number(said["error"]["code"] ?? -32000), said["error"]["data"] ?? null);
    if (isObject(said["result"])) return said["result"];
    return await request(connection, "tasks/result", { taskId: id });
  }
}

/** Without sessions the questions of a task stand in what is said of it; with sessions the server asks by itself. */
async function answer(connection: Connection, id: string, said: Params, answered: Set<string>): Promise<void> {
  if (!isObject(said["inputRequests"])) return;
  const responses: Params = {};
  for (const [key, each] of Object.entries(said["inputRequests"])) {
    if (isObject(each) && !answered.has(key)) {
      responses[key] = await ask(connection, String(each["method"]), isObject(each["params"]) ? each["params"] : {}, "tasks/get");
      answered.add(key);
    }
  }
  if (Object.keys(responses).length > 0) await request(connection, "tasks/update", { taskId: id, inputResponses: responses });
}

export async function cancelTask(task: Task): Promise<void> {
  try {
    await request(task.connection, "tasks/cancel", { taskId: task.id });
    put({ ...task, status: "cancelled" });
  } catch (error) {
    tasksProblem.value = (error as Error).message;
  }
}

/** Ask the server for its tasks, where it lists them, and for news of those that this page knows. */
export async function loadTasks(connection: Connection): Promise<void> {
  tasksProblem.value = null;
  try {
    const able = connection.about.value?.capabilities["tasks"];
    if (isObject(able) && able["list"] !== undefined) {
      for (const each of await listAll("tasks/list", "tasks", connection)) note(connection, each, known(String(each["taskId"])) ?? { tool: "", run: "" });
      return;
    }
    for (const task of tasks.value) {
      if (task.connection === connection && isOpen(task)) note(connection, await request(connection, "tasks/get", { taskId: task.id }), task);
    }
  } catch (error) {
    tasksProblem.value = (error as Error).message;
  }
}

/** Take what a server says of a task on its own. */
export function heardOfTask(connection: Connection, params: Params): void {
  const of = known(String(params["taskId"]));
  if (of !== undefined) note(connection, params, of);
}

function known(id: string): Task | undefined {
  return tasks.value.find((task) => task.id === id);
}

function note(connection: Connection, said: Params, { tool, run }: { tool: string; run: string }): Task {
  const task: Task = {
    id: String(said["taskId"]),
    connection,
    tool,
    run,
    status: String(said["status"] ?? "working"),
    message: String(said["statusMessage"] ?? ""),
    created: String(said["createdAt"] ?? new Date().toISOString()),
    progress: null,
  };
  put(task);
  return task;
}

function put(task: Task): void {
  const at = tasks.value.findIndex((each) => each.id === task.id);
  tasks.value = at < 0 ? [task, ...tasks.value].slice(0, MOST) : tasks.value.map((each, index) => (index === at ? task : each));
}

function request(connection: Connection, method: string, params: Params): Promise<Params> {
  return connection.request(method, params, hasSessions(connection.era.value) ? {} : WITH_TASKS);
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, Math.min(Math.max(ms, 100), MOST_POLL_MS));
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
