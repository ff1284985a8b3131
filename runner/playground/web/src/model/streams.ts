/** Messages out of an HTTP answer: one JSON value, or a stream of events with one in each. */
import { isObject, parseJson, tryJson, type Json } from "./json";

/** What could not be read as an answer of MCP. */
export class NoAnswer extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** Throws `NoAnswer` for anything but an answer. */
export async function* answers(response: Response): AsyncGenerator<Json> {
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("text/event-stream")) {
    for await (const data of events(response)) yield parseJson(data);
  } else if (type.startsWith("application/json")) {
    const body = parseJson(await response.text());
    if (!response.ok && isObject(body) && typeof body["error"] === "string") throw new NoAnswer(body["error"], response.status);
    yield body;
  } else {
    throw new NoAnswer(`the server answered HTTP ${response.status}: ${await said(response)}`, response.status);
  }
}

async function* events(response: Response): AsyncGenerator<string> {
  if (response.body === null) return;
  let held = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      let end: RegExpExecArray | null;
      while ((end = /\r?\n\r?\n/.exec(held)) !== null) {
        const data = held
          .slice(0, end.index)
          .split(/\r?\n/)
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(line.startsWith("data: ") ? 6 : 5));
        held = held.slice(end.index + end[0].length);
        if (data.length > 0 && data.join("") !== "") yield data.join("\n");
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** The gist of an answer that is not a message. */
export async function said(response: Response): Promise<string> {
  const text = (await response.text()).slice(0, 500);
  const body = tryJson(text);
  return isObject(body) && typeof body["error"] === "string" ? body["error"] : text;
}
