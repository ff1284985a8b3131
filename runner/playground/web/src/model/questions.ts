/** Questions of servers that wait for a person: sampling, roots, elicitation. Each is answered once. */
import { signal } from "@preact/signals";
import { Connection, McpError, type Params, type Watching } from "./connection";
import { isObject } from "./json";
import { count } from "../texts/numbers";

const ASKS = ["sampling/createMessage", "roots/list", "elicitation/create"];

export interface Question {
  id: string;
  connection: Connection;
  method: string;
  params: Params;
  /** What it belongs to, in words: a prompt, a resource; empty where nobody knows. */
  of: string;
  answer: (result: Params) => void;
  refuse: () => void;
}

export const questions = signal<Question[]>([]);

const REFUSED = -1;
const MOST = 20;
const MOST_ROUNDS = 20;

/** Have a question answered by a person. Throws `McpError` where it is refused. */
export function ask(connection: Connection, method: string, params: Params, of = "", signal?: AbortSignal): Promise<Params> {
  if (!ASKS.includes(method)) return Promise.reject(new McpError(`this page does not answer ${method}`, -32601));
  if (questions.value.length >= MOST) return Promise.reject(new McpError("too many questions wait for an answer already", REFUSED));
  return new Promise((resolve, reject) => {
    const id = crypto.randomUUID();
    const gone = (): void => { questions.value = questions.value.filter((each) => each.id !== id); };
    questions.value = [...questions.value, {
      id, connection, method, params, of,
      answer: (result) => { gone(); resolve(result); },
      refuse: () => { gone(); reject(new McpError("the person at the page refused", REFUSED)); },
    }];
    signal?.addEventListener("abort", () => { gone(); reject(signal.reason); });
  });
}

/** Ask a server, and answer what it wants to know before it answers itself. */
export async function requestAnswered(connection: Connection, method: string, params: Params, watching: Watching = {}): Promise<Params> {
  let more: Params = {};
  for (let round = 0; round < MOST_ROUNDS; round += 1) {
    const result = await connection.request(method, { ...params, ...more }, watching);
    if (result["resultType"] !== "input_required" || !isObject(result["inputRequests"])) return result;
    const asked = Object.entries(result["inputRequests"]).filter((each): each is [string, Params] => isObject(each[1]));
    const of = `${method} ${String(params["name"] ?? params["uri"] ?? "")}`;
    const answered = await Promise.all(asked.map(([, each]) => ask(connection, String(each["method"]), isObject(each["params"]) ? each["params"] : {}, of, watching.signal)));
    const responses = Object.fromEntries(asked.map(([key], at) => [key, answered[at] ?? {}]));
    more = { inputResponses: responses, ...(result["requestState"] === undefined ? {} : { requestState: result["requestState"] }) };
  }
  throw new McpError(`the server asked ${count(MOST_ROUNDS)} times for more`, -32000);
}
