/**
 * A picture of a sound: where it is loud, and where it is played. A click goes there; the player below does so by key.
 * Of a sound that is not read beforehand it grows while the sound is played.
 */
import type { JSX, RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useLoaded } from "./content";
import { hear } from "./heard";
import type { Item } from "./items";
import { peaks } from "./wave";
import { T } from "../texts/texts";

const COLUMNS = 600;
const HEIGHT = 80;

export function WaveView({ item, player }: { item: Item; player: RefObject<HTMLAudioElement | null> }): JSX.Element | null {
  const loaded = useLoaded(item, async (signal) => {
    const read = await peaks(item, COLUMNS, signal);
    return { parts: read ?? new Array<number>(COLUMNS).fill(0), isHeard: read === null };
  });
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const [element, audio] = [canvas.current, player.current];
    if (element === null || audio === null || loaded.value === null) return;
    const { parts: found, isHeard } = loaded.value;
    const draw = (): void => {
      const pen = element.getContext("2d");
      if (pen === null) return;
      const style = getComputedStyle(element);
      pen.clearRect(0, 0, COLUMNS, HEIGHT);
      const played = audio.duration > 0 ? (audio.currentTime / audio.duration) * found.length : 0;
      const width = COLUMNS / found.length;
      found.forEach((loud, at) => {
        pen.fillStyle = at < played ? style.color : style.borderTopColor;
        const height = Math.max(1, loud * HEIGHT);
        pen.fillRect(at * width, (HEIGHT - height) / 2, Math.max(1, width - 0.2), height);
      });
    };
    draw();
    const deaf = isHeard ? hear(audio, found, draw) : null;
    audio.addEventListener("timeupdate", draw);
    audio.addEventListener("seeked", draw);
    return () => {
      deaf?.();
      audio.removeEventListener("timeupdate", draw);
      audio.removeEventListener("seeked", draw);
    };
  }, [loaded.value, player]);
  if (loaded.value === null) return null;
  const seek = (event: MouseEvent): void => {
    const audio = player.current;
    const width = canvas.current?.clientWidth ?? 0;
    if (audio !== null && width > 0 && Number.isFinite(audio.duration)) audio.currentTime = (event.offsetX / width) * audio.duration;
  };
  return <canvas ref={canvas} class="wave" width={COLUMNS} height={HEIGHT} role="img" aria-label={T.viewers.wave} onClick={seek} />;
}
