/** What to try after an error, by its code; what the server itself advises goes first. */
import type { Params } from "./mcp";
import type { Cause } from "./runs";
import { T } from "../texts/texts";

/** Details in which the server itself says what to try. */
export const ADVISING = ["hint", "advice", "try", "suggestion"];

/** Of these denials it says the whole: what would be allowed, and by which flag. Ours speaks of paths and hosts only. */
const WHOLE = ["E_INVALID_PATH", "E_NETWORK_DENIED"];

/** What would allow what the sandbox denied, or what to do instead. */
export function adviceOfDenial(denial: Params): { flag: string | null; text: string } {
  const operation = String(denial["operation"]);
  const path = String(denial["path"] ?? "");
  if (typeof denial["flag"] === "string") return { flag: denial["flag"], text: T.advice.startWith };
  if (operation === "run") return { flag: null, text: T.advice.programs };
  if (operation === "socket.socket" && path.startsWith("AF_")) {
    return /^AF_UNIX SOCK_(STREAM|SEQPACKET)/.test(path)
      ? { flag: "--allow-sockets", text: T.advice.unixSockets }
      : { flag: null, text: T.advice.otherSockets };
  }
  if (NETWORK.test(operation)) {
    const where = HOST.test(path) ? `=${path}` : "";
    return { flag: `--allow-net${where}`, text: T.advice.network };
  }
  return { flag: null, text: /^\/(proc|sys|dev|run)(\/|$)/.test(path) ? T.advice.nothingAllows : T.advice.useHome };
}

const NETWORK = /^(socket\.|connect$|lookup$)/;
/** A name or an address, with a port or without; no other text gets into a command that people copy. */
const HOST = /^[\w.:[\]-]{1,255}$/;

/** Said by FastMCP where a running tool asks the client. */
const ERA = /unavailable on 2026-07-28 connections/;

export function adviceOf(code: string, details: Params, retryable: boolean): string {
  const own = ADVISING.map((key) => details[key]).find((each) => typeof each === "string");
  if (typeof own === "string" && WHOLE.includes(code)) return own;
  if (Object.values(details).some((each) => typeof each === "string" && ERA.test(each))) return T.advice.eraTooNew;
  const known = T.advice.codes[code] ?? (retryable ? T.advice.runAgain : T.advice.changeOrLog);
  return typeof own === "string" ? `${own.replace(/[^.!?]$/, "$&.")} ${known}` : known;
}

/** Of errors that are no result: the protocol's, the connection's, and calls that were left. */
export function adviceOfProblem(what: string, cause: Cause | undefined): string {
  if (cause === "unreachable") return T.advice.serverRuns;
  if (cause === "cancelled") return T.advice.whenWanted;
  // What a server says of it is in English.
  if (/session|log in/i.test(what)) return T.advice.openAgain;
  return T.advice.changeAsSaid;
}
