/** Questions of servers that wait for a person: sampling, roots, elicitation. Each is answered once. */
import { signal } from "@preact/signals";
import { Connection, McpError, type Params, type Watching } from "./connection";
import { isObject } from "./json";
import { T } from "../texts/texts";

const ASKS = ["sampling/createMessage", "roots/list", "elicitation/create"];

export function isAsk(method: string): boolean {
  return ASKS.includes(method);
}

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
export function ask(connection: Connection, method: string, params: Params, of = ""): Promise<Params> {
  if (!isAsk(method)) return Promise.reject(new McpError(`this page does not answer ${method}`, -32601));
  if (questions.value.length >= MOST) return Promise.reject(new McpError("too many questions wait for an answer already", REFUSED));
  return new Promise((resolve, reject) => {
    const id = crypto.randomUUID();
    const gone = (): void => { questions.value = questions.value.filter((each) => each.id !== id); };
    questions.value = [...questions.value, {
      id, connection, method, params, of,
      answer: (result) => { gone(); resolve(result); },
      refuse: () => { gone(); reject(new McpError("the person at the page refused", REFUSED)); },
    }];
  });
}

/** Ask a server, and answer what it wants to know before it answers itself. */
export async function requestAnswered(connection: Connection, method: string, params: Params, watching: Watching = {}): Promise<Params> {
  let more: Params = {};
  for (let round = 0; round < MOST_ROUNDS; round += 1) {
    const result = await connection.request(method, { ...params, ...more }, watching);
    if (result["resultType"] !== "input_required" || !isObject(result["inputRequests"])) return result;
    const responses: Params = {};
    for (const [key, each] of Object.entries(result["inputRequests"])) {
      if (isObject(each)) responses[key] = await ask(connection, String(each["method"]), isObject(each["params"]) ? each["params"] : {}, `${method} ${String(params["name"] ?? params["uri"] ?? "")}`);
    }
    more = { inputResponses: responses, ...(result["requestState"] === undefined ? {} : { requestState: result["requestState"] }) };
  }
  throw new McpError(T.session.askedTooOften(MOST_ROUNDS), -32000);
}
