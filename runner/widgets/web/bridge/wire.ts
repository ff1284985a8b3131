/** JSON-RPC over postMessage with one other window: requests with an end, notifications, and answers. */

import { isDict, own, text } from "./read.ts";
import type { Dict } from "./types.ts";

/** The other side answered with an error. */
export class Refused extends Error {
  readonly code: number;

  constructor(message: string, code: number) {
    super(message);
    this.name = "Refused";
    this.code = code;
  }
}

/** The other side said nothing. */
export class Unanswered extends Error {
  override readonly name = "Unanswered";
}

export interface Incoming {
  method: string;
  params: Dict;
  /** Present where an answer is due. */
  id?: string | number;
}

interface Pending {
  resolve(result: unknown): void;
  reject(error: Error): void;
  timer: ReturnType<typeof setTimeout>;
}

export const METHOD_NOT_FOUND = -32601;

export class Wire {
  readonly #post: (message: Dict) => void;
  readonly #pending = new Map<number, Pending>();
  #next = 1;

  constructor(post: (message: Dict) => void) {
    this.#post = post;
  }

  /** Ask, and wait for the answer at most `ms` milliseconds. */
  request(method: string, params: Dict, ms: number): Promise<unknown> {
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        reject(new Unanswered(`no answer to ${method} within ${ms / 1000} s`));
      }, ms);
      this.#pending.set(id, { resolve, reject, timer });
      this.#post({ jsonrpc: "2.0", id, method, params });
    });
  }

  notify(method: string, params: Dict): void {
    this.#post({ jsonrpc: "2.0", method, params });
  }

  answer(id: string | number, result: Dict): void {
    this.#post({ jsonrpc: "2.0", id, result });
  }

  refuse(id: string | number, code: number, message: string): void {
    this.#post({ jsonrpc: "2.0", id, error: { code, message } });
  }

  /** Settle the request of an answer; return other messages; `undefined` for what is neither. */
  receive(data: unknown): Incoming | undefined {
    if (own(data, "jsonrpc") !== "2.0") return undefined;
    const id = own(data, "id");
    const method = own(data, "method");
    if (typeof method !== "string") {
      this.#settle(id, data);
      return undefined;
    }
    const params = own(data, "params");
    const incoming: Incoming = { method, params: isDict(params) ? params : {} };
    if (typeof id === "string" || typeof id === "number") incoming.id = id;
    return incoming;
  }

  /** Reject everything that still waits. */
  end(why: string): void {
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(new Unanswered(why));
    }
    this.#pending.clear();
  }

  #settle(id: unknown, data: unknown): void {
    const pending = typeof id === "number" ? this.#pending.get(id) : undefined;
    if (pending === undefined) return;
    this.#pending.delete(id as number);
    clearTimeout(pending.timer);
    const error = own(data, "error");
    if (error === undefined) pending.resolve(own(data, "result"));
    else {
      const code = own(error, "code");
      pending.reject(new Refused(text(own(error, "message")) || "no reason given", typeof code === "number" ? code : 0));
    }
  }
}
