/** Presentations, pptx: the text, tables and notes of each slide, in their order. Nothing in them runs; drawings are only named. */
import type { JSX } from "preact";
import { plain } from "../model/plain";
import { opened, readPart } from "./archive";
import { Trouble, Waiting } from "./canvas";
import { useLoaded } from "./content";
import type { Item } from "./items";
import { attribute, child, children, parsed, relations, within } from "./xml";
import { T } from "../texts/texts";

const MOST_PART = 4_000_000;
const MOST_SLIDES = 200;
const MOST_PARAGRAPHS = 500;
// Shapes may stand in shapes, and each is searched whole.
const MOST_SHAPES = 300;

interface Paragraph {
  text: string;
  level: number;
}

interface Slide {
  title: string;
  paragraphs: Paragraph[];
  tables: string[][][];
  pictures: string[];
  notes: string;
  hidden: boolean;
}

export function SlidesView({ item }: { item: Item }): JSX.Element {
  const loaded = useLoaded(item, (signal) => read(item, signal));
  if (loaded.problem !== null) return <Trouble problem={loaded.problem} />;
  if (loaded.value === null) return <Waiting />;
  const { slides, total, macros } = loaded.value;
  return (
    <div class="stack">
      {macros && <p class="notice">{T.viewers.macros}</p>}
      <p class="soft small" role="status">{total > slides.length ? T.viewers.slidesOf(total, slides.length) : T.viewers.slides(total)}</p>
      {slides.map((slide, index) => (
        <section key={index} class="card body prose slide" aria-label={T.viewers.slide(index + 1)}>
          <p class="soft small">{index + 1}{slide.hidden && ` ${T.common.hidden}`}</p>
          {slide.title !== "" && <h2>{plain(slide.title)}</h2>}
          {slide.paragraphs.map((each, at) => <p key={at} style={{ marginInlineStart: `${each.level * 1.4}rem` }}>{plain(each.text)}</p>)}
          {slide.tables.map((table, at) => <div key={at} class="scroll"><table class="grid"><tbody>{table.map((row, place) => <tr key={place}>{row.map((cell, column) => <td key={column}>{plain(cell)}</td>)}</tr>)}</tbody></table></div>)}
          {slide.pictures.map((name, at) => <span key={at} class="badge">{T.viewers.picture(plain(name))}</span>)}
          {slide.notes !== "" && <blockquote>{T.viewers.notes(plain(slide.notes))}</blockquote>}
        </section>
      ))}
    </div>
  );
}

async function read(item: Item, signal: AbortSignal): Promise<{ slides: Slide[]; total: number; macros: boolean }> {
  const archive = await opened(item, signal);
  const text = await readPart(archive, "ppt/presentation.xml", MOST_PART, signal);
  if (text === null) throw new Error(T.viewers.noPresentation);
  const leads = relations(await readPart(archive, "ppt/_rels/presentation.xml.rels", MOST_PART, signal));
  const ids = within(parsed(text), "sldId");
  const slides: Slide[] = [];
  for (const id of ids.slice(0, MOST_SLIDES)) {
    // Its own id stands before the one of the relation, which has a prefix.
    const relation = [...id.attributes].find((each) => each.localName === "id" && each.prefix !== null)?.value ?? "";
    const path = placed("ppt/", leads.get(relation)?.target ?? "");
    const slide = await readPart(archive, path, MOST_PART, signal);
    if (slide === null) continue;
    const around = relations(await readPart(archive, path.replace(/([^/]+)$/, "_rels/$1.rels"), MOST_PART, signal));
    const notes = [...around.values()].find((each) => each.target.includes("notesSlide"))?.target;
    const said = notes === undefined ? null : await readPart(archive, placed("ppt/slides/", notes), MOST_PART, signal);
    slides.push({ ...slideOf(parsed(slide)), notes: said === null ? "" : notesOf(parsed(said)) });
    // A presentation of many slides leaves the page time for other things.
    await new Promise((done) => setTimeout(done));
    if (signal.aborted) break;
  }
  return { slides, total: ids.length, macros: archive.entries.some((each) => each.name.endsWith("vbaProject.bin")) };
}

/** The path of a part within the archive; `..` is followed, and nothing lies above the archive. */
function placed(folder: string, target: string): string {
  const path: string[] = [];
  for (const step of (target.startsWith("/") ? target : folder + target).split("/")) {
    if (step === "..") path.pop();
    else if (step !== "" && step !== ".") path.push(step);
  }
  return path.join("/");
}

function slideOf(slide: Document): Slide {
  const found: Slide = { title: "", paragraphs: [], tables: [], pictures: [], notes: "", hidden: slide.documentElement.getAttribute("show") === "0" };
  for (const shape of within(slide, "sp").slice(0, MOST_SHAPES)) {
    const kind = kindOf(shape);
    const paragraphs = within(shape, "p").map((each) => ({ text: textOf(each), level: Math.min(8, Math.max(0, Number(child(each, "pPr")?.getAttribute("lvl") ?? 0) || 0)) })).filter((each) => each.text !== "");
    if (kind === "title" || kind === "ctrTitle") found.title = paragraphs.map((each) => each.text).join(" ");
    else for (const each of paragraphs) if (found.paragraphs.length < MOST_PARAGRAPHS) found.paragraphs.push(each);
  }
  for (const table of within(slide, "tbl").slice(0, 20)) found.tables.push(children(table, "tr").slice(0, MOST_PARAGRAPHS).map((row) => children(row, "tc").slice(0, 50).map((cell) => within(cell, "p").map(textOf).join(" "))));
  for (const picture of within(slide, "pic").slice(0, 50)) {
    const about = child(picture, "nvPicPr", "cNvPr");
    found.pictures.push((about?.getAttribute("descr") || about?.getAttribute("name") || T.viewers.noName).slice(0, 200));
  }
  return found;
}

function notesOf(notes: Document): string {
  return within(notes, "sp").slice(0, MOST_SHAPES).filter((each) => kindOf(each) === "body").flatMap((each) => within(each, "p").map(textOf)).join(" ").slice(0, 10_000).trim();
}

function kindOf(shape: Element): string | null {
  return attribute(child(shape, "nvSpPr", "nvPr", "ph"), "type");
}

function textOf(paragraph: Element): string {
  return within(paragraph, "t").map((each) => each.textContent).join("").slice(0, 10_000);
}
