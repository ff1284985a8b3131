/** What to try after an error, by its code; what the server itself advises goes first. */
import type { Params } from "./connection";
import type { Cause } from "./runs";

/** Details in which the server itself says what to try. */
export const ADVISING = ["hint", "advice", "try", "suggestion"];

export const AS_THE_MESSAGE_SAYS = "Change the arguments as the message says, and run it again; the Messages tab has all that was said.";

/** Of these denials it says the whole: what would be allowed, and by which flag. Ours speaks of paths and hosts only. */
const WHOLE = ["E_INVALID_PATH", "E_NETWORK_DENIED"];

/** What would allow what the sandbox denied, or what to do instead. */
export function adviceOfDenial(denial: Params): { flag: string | null; text: string } {
  const operation = String(denial["operation"]);
  const path = String(denial["path"] ?? "");
  if (typeof denial["flag"] === "string") return { flag: denial["flag"], text: "Start the runner with it, or use the tool's home." };
  if (operation === "run") return { flag: null, text: "Tools run only programs that the operator's settings name; call a library instead." };
  if (operation === "socket.socket" && path.startsWith("AF_")) {
    return /^AF_UNIX SOCK_(STREAM|SEQPACKET)/.test(path)
      ? { flag: "--allow-sockets", text: "Processes of the tool then reach each other, and nobody else." }
      : { flag: null, text: "Nothing allows sockets of this kind; use TCP." };
  }
  if (NETWORK.test(operation)) {
    const where = HOST.test(path) ? `=${path}` : "";
    return { flag: `--allow-net${where}`, text: "Start the runner with it, or give the tool its data as a file." };
  }
  return { flag: null, text: /^\/(proc|sys|dev|run)(\/|$)/.test(path) ? "Nothing allows this place." : "Use the tool's home, or give the tool the file as an argument." };
}

const NETWORK = /^(socket\.|connect$|lookup$)/;
/** A name or an address, with a port or without; no other text gets into a command that people copy. */
const HOST = /^[\w.:[\]-]{1,255}$/;

/** Said by FastMCP where a running tool asks the client. */
const ERA = /unavailable on 2026-07-28 connections/;

const CODES: Record<string, string> = {
  E_TIMEOUT: "Give it less to do, or have the tool report progress, which resets the idle limit. The operator raises idle_timeout_s in runner.toml, under [tools.NAME].",
  "E_TIMEOUT total": "Give it less to do. The operator raises total_timeout_s in runner.toml, under [tools.NAME]; progress does not reset it.",
  E_INVALID_PATH: "Write below the tool's home, /tmp/{username}/, or let the operator allow the path; the Sandbox tab names the flag.",
  E_FILE_TOO_LARGE: "Make a smaller file, or let the operator raise the limit.",
  E_TOOL_NOT_FOUND: "Choose a tool of the list; it may have been renamed.",
  E_TOOL: "The tool itself raised this. Change the arguments, or look at the lines of its code above.",
  E_CRASHED: "Run it again. If it ends the same way, look at the Log tab for what it said last.",
  E_MEMORY: "Give it less data at once, or let the operator raise the memory limit.",
  E_RESOURCE_LIMIT: "Give it less to do, or let the operator raise the limit that is named above.",
  E_BUSY: "Wait a moment and run it again.",
  E_UNAUTHORIZED: "Log in with a token that has the scopes named above.",
  E_CANCELLED: "Run it again when you want its result.",
  E_INVALID_ARGUMENT: "Correct the arguments that are named above; the form shows what each one takes.",
  E_FILE_NOT_FOUND: "Upload the file under My Files, or choose one that is there.",
  E_NETWORK_DENIED: "Let the operator allow the host with the flag named above, or do without it.",
  E_STORE: "Run it again in a while; the store of files did not answer.",
  E_QUOTA: "Delete what you do not need under My Files.",
  E_ISOLATION: "The operator can find out with runner selftest which layer this machine lacks.",
  E_INVALID_RESULT: "Change what the tool returns at the place named above.",
};

export function adviceOf(code: string, details: Params, retryable: boolean): string {
  const own = ADVISING.map((key) => details[key]).find((each) => typeof each === "string");
  if (typeof own === "string" && WHOLE.includes(code)) return own;
  if (Object.values(details).some((each) => typeof each === "string" && ERA.test(each))) return "Choose protocol version 2025-11-25 under Connection, and run it again.";
  const known = CODES[`${code} ${String(details["limit"])}`] ?? CODES[code] ?? (retryable ? "Run it again." : "Change the arguments, or look at the Log tab.");
  return typeof own === "string" ? `${own.replace(/[^.!?]$/, "$&.")} ${known}` : known;
}

/** Of errors that are not results: the protocol's, the connection's, and calls that were left. */
export function adviceOfProblem(what: string, cause: Cause | undefined): string {
  if (cause === "unreachable") return "Run it again once the server answers.";
  if (cause === "cancelled") return "Run it again when you want its result.";
  // What a server says of it is in English.
  if (/session|log in/i.test(what)) return "Open the printed address again, or log in.";
  return AS_THE_MESSAGE_SAYS;
}
