/** Files that a widget gives to keep, each after a person said yes, and where they can be had again. */
import type { JSX } from "preact";
import { signal } from "@preact/signals";
import { linkTo, upload } from "../model/files";
import { info } from "../model/info";
import { plain } from "../model/plain";
import type { Run } from "../model/runs";
import { size } from "../texts/numbers";
import { Consent } from "../views/consent";
import { shownOf } from "./items";

interface Offer {
  run: string;
  file: File;
  decide(allowed: boolean): void;
}

const offers = signal<Offer[]>([]);
/** Ids of files that widgets of this page gave, by run. */
const given = new Map<string, Set<string>>();

/** Keep a file for the widget of a run. Throws an Error where a person said no, or the file cannot be kept. */
export async function keepForWidget(run: string, content: Blob): Promise<string> {
  const most = info.value?.upload_max_bytes ?? 0;
  if (content.size > most) throw new Error(`the file has ${size(content.size)}; this server takes ${size(most)}`);
  const name = content instanceof File && content.name !== "" ? content.name : "file";
  const file = new File([content], name, { type: content.type });
  const allowed = await new Promise<boolean>((decide) => { offers.value = [...offers.value, { run, file, decide }]; });
  if (!allowed) throw new Error("the person at the page did not want this file kept");
  const { key } = await upload(file);
  given.set(run, (given.get(run) ?? new Set()).add(key));
  return key;
}

/** The address of a file that the widget gave, or that its call made. Throws an Error for any other. */
export function addressForWidget(run: Run, fileId: string): Promise<string> {
  const key = fileId.replace(/^artifact:\/\//, "");
  const isOwn = given.get(run.id)?.has(key) === true || shownOf(run).items.some((item) => item.uri === `artifact://${key}`);
  if (!isOwn) throw new Error(`there is no file ${fileId} of this widget or of its call`);
  return linkTo(key);
}

/** Files that wait when their widget goes are not kept. */
export function forgetOffers(run: string): void {
  for (const offer of offers.value) if (offer.run === run) answer(offer, false);
}

function answer(offer: Offer, allowed: boolean): void {
  offers.value = offers.value.filter((each) => each !== offer);
  offer.decide(allowed);
}

/** The first of the files that wait for a person. */
export function OfferedFile({ run }: { run: Run }): JSX.Element | null {
  const offer = offers.value.find((each) => each.run === run.id);
  if (offer === undefined) return null;
  return (
    <Consent key={offer.file.name} yes="Keep it" no="Do not keep it" decide={(allowed) => answer(offer, allowed)}>
      <p>The widget wants to keep <b class="mono">{plain(offer.file.name)}</b>, {size(offer.file.size)}, in My Files.</p>
    </Consent>
  );
}
