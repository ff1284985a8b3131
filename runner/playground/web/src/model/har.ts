/** The log of messages in forms that other tools read: JSON lines, and HAR 1.2 as browsers and proxies write it. */
import { connectionNamed } from "./connections";
import { toJson, type Json } from "./json";
import { partner, type Message } from "./wire";

/** Bytes as they go over the wire, in which HAR counts. */
function bytesOf(text: string): number {
  return new TextEncoder().encode(text).length;
}

/** One JSON object a line, with the message under `message`. */
export function asLines(log: readonly Message[]): string {
  return log.map(({ n, at, server, direction, kind, method, size, took, message }) =>
    toJson({ n, time: new Date(at).toISOString(), server, direction, kind, method, chars: size, took_ms: took, message })).join("\n") + "\n";
}

/**
 * Each request with its answer is an entry. What a server asks is one too, the other way round; its comment says so.
 *
 * Source: HAR 1.2, sections "entries", "request" and "response".
 */
export function asHar(log: readonly Message[]): string {
  const entries = log.filter((each) => each.kind === "request" || each.kind === "notification").map((each) => {
    const answer = each.kind === "request" ? partner(each) : undefined;
    const asked = toJson(each.message);
    const answered = answer === undefined ? "" : toJson(answer.message);
    const endpoint = new URL(connectionNamed(each.server)?.endpoint ?? "/mcp", location.origin).href;
    return {
      startedDateTime: new Date(each.at).toISOString(),
      time: answer?.took ?? 0,
      comment: `${each.server}: ${each.method}${each.direction === "received" ? " (said by the server)" : ""}`,
      request: { method: "POST", url: endpoint, httpVersion: "HTTP/1.1", cookies: [], headers: [{ name: "content-type", value: "application/json" }], queryString: [], headersSize: -1, bodySize: bytesOf(asked), postData: { mimeType: "application/json", text: asked } },
      response: { status: answer === undefined ? 202 : 200, statusText: answer === undefined ? "Accepted" : "OK", httpVersion: "HTTP/1.1", cookies: [], headers: [], content: { size: bytesOf(answered), mimeType: "application/json", ...(answer === undefined ? {} : { text: answered }) }, redirectURL: "", headersSize: -1, bodySize: bytesOf(answered) },
      cache: {},
      timings: { send: 0, wait: answer?.took ?? 0, receive: 0 },
    };
  });
  return toJson({ log: { version: "1.2", creator: { name: "toolcell-playground", version: "1" }, entries: entries as unknown as Json } }, 1);
}
