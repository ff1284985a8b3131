"""Which calls in a tool file write to the disk, and which read from it, with the path they name."""

import ast
from dataclasses import dataclass

from runner.check.bindings import Bindings, argument
from runner.check.source import SourceFile
from runner.check.templates import Template, Templates
from runner.check.values import OPENERS, ValueKind, Values

__all__ = ["DiskAccess", "DiskCalls"]

_OS = frozenset(
    {
        "mkdir", "makedirs", "remove", "unlink", "rename", "renames", "replace", "rmdir", "removedirs",
        "link", "symlink", "truncate", "chmod", "chown", "utime", "mkfifo", "mknod",
    }
)  # fmt: skip
_TEMPORARY = frozenset({"NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "mkstemp", "mkdtemp"})

# Full name → which argument names what is written, by position and by name.
_WRITERS: dict[str, tuple[int, str]] = {
    **{f"os.{name}": (0, "path") for name in _OS},
    **{f"os.{name}": (1, "dst") for name in ("rename", "renames", "replace", "link", "symlink")},
    **{f"shutil.{name}": (1, "dst") for name in ("copy", "copy2", "copyfile", "copytree", "move")},
    **{f"tempfile.{name}": (-1, "dir") for name in _TEMPORARY},
    "shutil.rmtree": (0, "path"),
    "shutil.make_archive": (0, "base_name"),
    "shutil.unpack_archive": (1, "extract_dir"),
    "logging.FileHandler": (0, "filename"),
    "logging.handlers.RotatingFileHandler": (0, "filename"),
    "logging.handlers.TimedRotatingFileHandler": (0, "filename"),
    "urllib.request.urlretrieve": (1, "filename"),
    "shelve.open": (0, "filename"),
    "numpy.save": (0, "file"),
    "numpy.savez": (0, "file"),
    "numpy.savez_compressed": (0, "file"),
    "numpy.savetxt": (0, "fname"),
    "joblib.dump": (1, "filename"),
    "torch.save": (1, "f"),
    "cv2.imwrite": (0, "filename"),
    "imageio.imwrite": (0, "uri"),
    "soundfile.write": (0, "file"),
    "pyarrow.parquet.write_table": (1, "where"),
    "pyarrow.csv.write_csv": (1, "output_file"),
    "pyarrow.feather.write_feather": (1, "dest"),
    "matplotlib.pyplot.savefig": (0, "fname"),
    "matplotlib.pyplot.imsave": (0, "fname"),
    "pandas.ExcelWriter": (0, "path"),
    "pandas.HDFStore": (0, "path"),
}

# Full name → position of the file and of the mode, which decides.
_BY_MODE: dict[str, tuple[int, int]] = {
    **dict.fromkeys(OPENERS, (0, 1)),
    "tarfile.open": (0, 1),
    "zipfile.ZipFile": (0, 1),
    "wave.open": (0, 1),
    "h5py.File": (0, 1),
    "dbm.open": (0, 1),
    "PIL.Image.open": (0, 1),
}

_PATH_METHODS = frozenset(
    {
        "write_text", "write_bytes", "mkdir", "touch", "unlink", "rmdir", "rename", "replace", "chmod",
        "symlink_to", "hardlink_to",
    }
)  # fmt: skip
_ONLY_PATHS_HAVE = frozenset({"write_text", "write_bytes", "symlink_to", "hardlink_to"})

# Methods of tables and figures that write where they are given a path; without one they return text.
_EXPORTS = frozenset(
    {
        "to_csv", "to_parquet", "to_pickle", "to_excel", "to_feather", "to_hdf", "to_json", "to_html",
        "to_latex", "to_markdown", "to_stata", "to_xml", "to_string", "to_orc", "to_netcdf", "to_zarr",
        "write_csv", "write_parquet", "write_json", "write_ndjson", "write_ipc", "write_excel", "write_html",
        "write_image", "sink_csv", "sink_parquet", "sink_ipc", "sink_ndjson", "savefig",
    }
)  # fmt: skip
_EXPORT_NAMES = ("path_or_buf", "path_or_buffer", "path", "buf", "excel_writer", "fname", "file", "target")
_SAVES = frozenset({"save", "save_as", "tofile", "extract", "output"})
_SAVE_NAMES = ("fp", "filename", "path", "file", "fname")

_PATH_READS = frozenset({"read_text", "read_bytes", "open", "iterdir", "glob", "rglob"})
_READERS = frozenset(
    {"os.listdir", "os.scandir", "os.walk", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "shutil.copy"}
)
_READ_ONLY_SQL = ("select", "with", "explain", "pragma table_info", "values")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskAccess:
    """One call that reads or writes a file.

    Attributes:
        node: The call.
        target: How the path is written, as far as it is.
    """

    node: ast.Call
    target: Template | None


class DiskCalls:
    """Finds the calls of one file that touch the disk."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self.bindings = Bindings(source)
        self.values = Values(source, self.bindings)
        self.templates = Templates(source, self.bindings)

    def write(self, call: ast.AST) -> DiskAccess | None:
        """Return what a node writes, if it is a call that writes."""
        if not isinstance(call, ast.Call):
            return None
        writes, target = self._written(call)
        if not writes or self.values.kind(target) in (ValueKind.MEMORY, ValueKind.FILE):
            return None
        template = self.templates.template(target)
        if template is not None and (template.text.startswith("/dev/") or "://" in template.text):
            return None
        if self._source.dotted(target) == "os.devnull":
            return None
        return DiskAccess(node=call, target=template)

    def read(self, call: ast.AST) -> DiskAccess | None:
        """Return what a node reads, if it is a call that reads a file."""
        if not isinstance(call, ast.Call) or self.write(call) is not None:
            return None
        dotted = self._source.dotted(call.func) or ""
        target = None
        if dotted in _BY_MODE or dotted in _READERS or dotted.startswith(("pandas.read_", "polars.read_")):
            target = argument(call, 0, "file", "path", "filepath_or_buffer", "io", "source")
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _PATH_READS:
            is_path = self.values.kind(call.func.value) is ValueKind.PATH
            target = call.func.value if is_path else None
        if target is None or self.values.kind(target) in (ValueKind.MEMORY, ValueKind.FILE):
            return None
        return DiskAccess(node=call, target=self.templates.template(target))

    def _written(self, call: ast.Call) -> tuple[bool, ast.expr | None]:
        """Say whether a call writes, and which expression names the file."""
        dotted = self._source.dotted(call.func)
        if dotted is not None:
            return self._written_by_name(call, dotted)
        if isinstance(call.func, ast.Attribute):
            return self._written_by_method(call, call.func)
        return False, None

    def _written_by_name(self, call: ast.Call, dotted: str) -> tuple[bool, ast.expr | None]:
        if dotted in _WRITERS:
            position, name = _WRITERS[dotted]
            return True, argument(call, position, name)
        if dotted in _BY_MODE:
            position, mode = _BY_MODE[dotted]
            return self._opens_for_writing(call, mode), argument(call, position, "file", "name", "filename")
        if dotted == "os.open":
            flags = argument(call, 1, "flags")
            names = {getattr(part, "attr", "") for part in ast.walk(flags)} if flags else set()
            return bool(names & {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}), call.args[0]
        if dotted == "sqlite3.connect":
            return self._changes_database(call), argument(call, 0, "database")
        if dotted == "logging.basicConfig":
            filename = argument(call, -1, "filename")
            return filename is not None, filename
        if isinstance(call.func, ast.Attribute) and dotted.startswith("pathlib."):
            return self._written_by_method(call, call.func)
        return False, None

    def _written_by_method(self, call: ast.Call, func: ast.Attribute) -> tuple[bool, ast.expr | None]:
        receiver = self.values.kind(func.value)
        if receiver is ValueKind.ARCHIVE or func.attr == "extractall":
            return func.attr in ("extract", "extractall"), argument(call, 0, "path")
        if func.attr in _PATH_METHODS:
            is_path = receiver is ValueKind.PATH or (receiver is None and func.attr in _ONLY_PATHS_HAVE)
            return is_path, func.value
        if func.attr == "open" and receiver is ValueKind.PATH:
            return self._opens_for_writing(call, 0), func.value
        if func.attr in _EXPORTS:
            target = argument(call, 0, *_EXPORT_NAMES)
            return target is not None and not _is_none(target), target
        if func.attr in _SAVES:
            target = argument(call, 0, *_SAVE_NAMES)
            return self.values.kind(target) in (ValueKind.PATH, ValueKind.TEXT), target
        return False, None

    def _opens_for_writing(self, call: ast.Call, position: int) -> bool:
        mode = argument(call, position, "mode")
        one_of = [mode.body, mode.orelse] if isinstance(mode, ast.IfExp) else [mode]
        templates = [self.templates.template(expression) for expression in one_of]
        return any(
            set("wax+") & set(found.text.partition(":")[0]) for found in templates if found is not None
        )

    def _changes_database(self, call: ast.Call) -> bool:
        """Say whether a database is written; one that is only asked opens on a read-only disk too."""
        database = self.templates.template(argument(call, 0, "database"))
        if database is not None and any(
            word in database.text for word in (":memory:", "mode=ro", "immutable=1")
        ):
            return False
        around = self._source.function_around(call) or self._source.tree
        said = [
            node.args[0].value.strip().lower()
            for node in ast.walk(around)
            if isinstance(node, ast.Call)
            and getattr(node.func, "attr", "").startswith(("execute", "read_sql"))
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
        ]
        return not said or not all(statement.startswith(_READ_ONLY_SQL) for statement in said)


def _is_none(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is None
