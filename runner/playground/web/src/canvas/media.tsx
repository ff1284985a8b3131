/** Pictures, sound and film. A picture that is a document, SVG, is shown as a picture only: nothing in it runs. */
import type { JSX } from "preact";
import { useSignal } from "@preact/signals";
import { addressOf, isHeld, missing } from "../model/files";
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
  // What came in a message has no address that a player could ask.
  return isHeld(item.uri) ? <Held item={item} /> : <Player item={item} src={addressOf(item.uri)} />;
}

function Held({ item }: { item: Item }): JSX.Element {
  const loaded = useBlob(item, item.mime, MOST);
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  return loaded.value === null ? <Waiting /> : <Player item={item} src={loaded.value} />;
}

/** By address, where it has one: a film is played while it loads. */
function Player({ item, src }: { item: Item; src: string }): JSX.Element {
  const problem = useSignal<string | null>(null);
  if (problem.value !== null) return <Trouble problem={problem.value} />;
  const failed = async (): Promise<void> => {
    problem.value = (await missing(item.uri)) ?? "the browser cannot play it";
  };
  const shared = { src, controls: true, preload: "metadata" as const, onError: () => void failed(), "aria-label": item.name };
  return item.viewer === "audio" ? <audio {...shared} /> : <video class="picture" {...shared} />;
}
