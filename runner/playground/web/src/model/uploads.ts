/** Files on their way to the server, one after the other. They go on when another view is shown. */
import { signal } from "@preact/signals";
import { upload } from "./files";

export interface Sending {
  id: number;
  name: string;
  /** How much of it was sent, between 0 and 1. */
  part: number;
  problem: string | null;
}

/** What is sent now, waits, or could not be sent. */
export const sending = signal<Sending[]>([]);
/** How many of the files that were given together have been sent, and how many were given. */
export const sent = signal({ done: 0, all: 0 });

const queue: { id: number; file: File }[] = [];
let running = false;
let last = 0;

export function send(given: Iterable<File>): void {
  const added: Sending[] = [];
  for (const file of given) {
    last += 1;
    queue.push({ id: last, file });
    added.push({ id: last, name: file.name, part: 0, problem: null });
  }
  sending.value = [...sending.value, ...added];
  sent.value = { done: running ? sent.value.done : 0, all: (running ? sent.value.all : 0) + added.length };
  void work();
}

export function dismiss(id: number): void {
  sending.value = sending.value.filter((each) => each.id !== id);
}

async function work(): Promise<void> {
  if (running) return;
  running = true;
  for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
    const { id, file } = next;
    const change = (part: Partial<Sending>): void => {
      sending.value = sending.value.map((each) => (each.id === id ? { ...each, ...part } : each));
    };
    try {
      await upload(file, (part) => change({ part }));
      dismiss(id);
    } catch (error) {
      change({ problem: (error as Error).message });
    }
    sent.value = { ...sent.value, done: sent.value.done + 1 };
  }
  running = false;
}
