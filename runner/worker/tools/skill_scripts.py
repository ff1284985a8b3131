"""Server of a folder of skills: their files as `skill://` resources, their scripts behind one tool.

FastMCP reads the folder once, when a zygote loads it: if a script changes later, the listed version runs. It
refuses links, special files and invalid front matter. A script gets a copy of its whole skill in the home, an
empty working folder, and the input files of the call.

There is one tool instead of one for each script: SKILL.md names a script by its path, as a client would start
it, and the list of tools stays small for any number of skills.

Source: SEP-2640; agentskills.io, "Specification"; `docs/guide.md`, "Skills".
"""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.skills import Skill
from fastmcp.skills.provider import SkillsDirectoryProvider
from pydantic import Field

from sandbox.errors import LoadError

__all__ = ["skills_server"]

_MOST_HEADER_BYTES = 256 * 1024
_MOST_OUTPUT_CHARS = 6000
# Bytes of that many four-byte characters, and of a partial one before them.
_MOST_OUTPUT_BYTES = 4 * _MOST_OUTPUT_CHARS + 3
_MOST_FILES = 100
_MOST_NAMED = 50
_FOLDER = "scripts/"
_MOST_LINE_CHARS = 200
# Time to read output that a script has written just before its exit.
_DRAIN_S = 0.5


def skills_server(folder: Path) -> FastMCP:
    """Return the server of a folder of skills.

    Raises:
        LoadError: There is no skill in it, or one of them is invalid.
    """
    for header in folder.rglob("SKILL.md"):
        # YAML takes about a second for a header of this size.
        if header.stat().st_size > _MOST_HEADER_BYTES:
            raise LoadError(
                f"{header} is longer than {_MOST_HEADER_BYTES} bytes; move parts of it to other files"
            )
    try:
        provider = SkillsDirectoryProvider(folder)
        skills = dict(_normal(asyncio.run(provider.load_skills())))
        for path, skill in skills.items():
            # A name that is not UTF-8 could not be encoded in any list.
            "\n".join((path, *skill.files)).encode()
    except UnicodeEncodeError as error:
        raise LoadError(f"a file of {folder} has a name that is not UTF-8: {error.object!r}") from error
    except ValueError as error:
        raise LoadError(str(error)) from error
    if not skills:
        raise LoadError(f"no skill can be read in {folder}")
    server: FastMCP = FastMCP(folder.name, providers=[provider])

    async def run_skill_script(
        ctx: Context,
        skill: Annotated[str, Field(description="Name of the skill.")],
        script: Annotated[str, Field(description="Path of the script in it, such as scripts/report.py.")],
        args: Annotated[
            list[str], Field(description="Arguments; a name in filenames becomes its path.")
        ] = [],  # noqa: B006
        filenames: Annotated[list[str], Field(description="Input files, by their names in My Files.")] = [],  # noqa: B006
        username: str = "",
    ) -> dict[str, Any]:
        del username  # It gives the call its home.
        found = skills.get(skill)
        if found is None:
            raise ToolError(f"there is no skill {skill!r}; there are {', '.join(skills)}")
        return await _run(ctx, found, script, args, filenames)

    server.tool(run_skill_script, description=_about(skills))
    return server


def _normal(skills: Any) -> Mapping[str, Skill]:
    return skills if isinstance(skills, Mapping) else {skill.name: skill for skill in skills}


def _scripts(skill: Skill) -> list[str]:
    return [
        path for path, content in skill.files.items() if path.startswith(_FOLDER) and _command(path, content)
    ]


def _command(path: str, content: bytes) -> list[str] | None:
    """Return the interpreter of a script; None for a file that is not a script."""
    if path.endswith(".py"):
        return [sys.executable]
    first = content.partition(b"\n")[0].decode(errors="replace")
    # Parsed like the kernel does: one argument at most. The copy in the home is not executable.
    if first.startswith("#!") and first[2:].strip():
        return first[2:].split(maxsplit=1)
    return ["sh"] if path.endswith(".sh") else None


def _about(skills: Mapping[str, Skill]) -> str:
    lines = [f"- {path}: {', '.join(_scripts(skill)) or 'no scripts'}" for path, skill in skills.items()]
    return (
        "Run a script of a skill in a sandbox, and return its output and the files that it wrote into its "
        "working folder. Read skill://NAME/SKILL.md first.\n" + "\n".join(lines[:_MOST_NAMED])
    )


async def _run(
    ctx: Context, skill: Skill, script: str, args: list[str], filenames: list[str]
) -> dict[str, Any]:
    path = script if script.startswith(_FOLDER) else f"{_FOLDER}{script}"
    scripts = _scripts(skill)
    if path not in scripts:
        raise ToolError(
            f"the skill {skill.name} has no script {script!r}; it has {', '.join(scripts) or 'none'}"
        )
    work = Path(tempfile.mkdtemp(prefix=f"{skill.name}-", dir=os.environ["HOME"]))
    inputs = {os.path.basename(name): name for name in filenames}
    # The copy is removed with the call: a home is for all calls of a session.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        copy = skill.to_directory(Path(place, skill.name))
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            _Output,
            *(_command(path, skill.files[path]) or ()),
            str(copy / path),
            *(inputs.get(word, word) for word in args),
            cwd=work,
            stdin=asyncio.subprocess.DEVNULL,
        )
        with contextlib.closing(transport):
            await output.followed(ctx)
            status = transport.get_returncode()
    results = {"stdout": output.text(1), "stderr": output.text(2)}
    if status:
        raise ToolError(
            f"{path} ended with exit status {status}\n{results['stderr'] or results['stdout']}".rstrip()
        )
    return {"results": {key: value for key, value in results.items() if value}, "artifacts": _written(work)}


def _written(folder: Path) -> list[dict[str, str]]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return [
        {"name": file.name, "path": str(file), "mime": guess_type(file.name)[0] or "application/octet-stream"}
        for file in files[:_MOST_FILES]
    ]


class _Output(asyncio.SubprocessProtocol):
    """The output of a script, up to its own exit: an orphan of it may keep the pipes open."""

    def __init__(self) -> None:
        self._ends = {1: b"", 2: b""}
        self._latest, self._chunks = 1, 0
        self._changed, self._exited, self._closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def text(self, fd: int) -> str:
        """Return the tail of its output on a descriptor."""
        return self._ends[fd].decode(errors="replace")[-_MOST_OUTPUT_CHARS:]

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Add output."""
        self._ends[fd], self._latest = (self._ends[fd] + data)[-_MOST_OUTPUT_BYTES:], fd
        self._chunks += 1
        self._changed.set()

    def process_exited(self) -> None:
        """End the wait for more."""
        self._exited.set()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that all output has been read."""
        self._closed.set()

    async def followed(self, ctx: Context) -> None:
        """Wait for the exit of the script. Report its output as progress, so that it is not silent."""
        reported, is_over = 0, False
        while not is_over:
            await self._changed.wait()
            self._changed.clear()
            is_over = self._exited.is_set()
            if is_over:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), _DRAIN_S)
            if reported < self._chunks:
                reported = self._chunks
                line = self.text(self._latest).strip().rpartition("\n")[2]
                await ctx.report_progress(reported, message=line[:_MOST_LINE_CHARS])
