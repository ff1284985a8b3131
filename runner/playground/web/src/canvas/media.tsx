/** Pictures, sound and film. A picture that is a document, SVG, is shown as a picture only: nothing in it runs. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { addressOf, missing } from "../model/files";
import { Trouble, Waiting } from "./canvas";
import { useBlob } from "./content";
import type { Item } from "./items";

const MOST = 100_000_000;

export function ImageView({ item }: { item: Item }): JSX.Element {
  const loaded = useBlob(item, item.mime, MOST);
  const broken = useSignal(false);
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  if (broken.value) return <Trouble problem="the browser cannot read it as a picture" />;
  return <img class="picture" src={loaded.value} alt={item.description ?? item.name} onError={() => { broken.value = true; }} />;
}

export function MediaView({ item }: { item: Item }): JSX.Element {
  const problem = useSignal<string | null>(null);
  // By address, not by blob: a film is played while it loads.
  const src = addressOf(item.uri);
  if (problem.value !== null) return <Trouble problem={problem.value} />;
  const failed = async (): Promise<void> => {
    problem.value = (await missing(item.uri)) ?? "the browser cannot play it";
  };
  const shared = { src, controls: true, preload: "metadata" as const, onError: () => void failed(), "aria-label": item.name };
  return item.viewer === "audio" ? <audio {...shared} /> : <video class="picture" {...shared} />;
}
