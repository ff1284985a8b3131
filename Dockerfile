# One container for one user. How to build and run it: docs/deploying.md

FROM python:3.13-slim-trixie AS build
WORKDIR /build
# Without a pip of its own: the base image's installs into it.
RUN python -m venv --without-pip /opt/toolcell
COPY requirements/runtime.txt ./
RUN pip --python /opt/toolcell/bin/python install --no-cache-dir --no-deps --require-hashes -r runtime.txt
# What was installed, as CycloneDX. Its tool has an environment of its own, which stays in this stage.
COPY requirements/sbom.txt ./
RUN python -m venv --without-pip sbom \
    && pip --python sbom/bin/python install --no-cache-dir --no-deps --require-hashes -r sbom.txt \
    && sbom/bin/cyclonedx-py requirements --output-reproducible --output-format JSON \
       --output-file /opt/toolcell/sbom.cdx.json runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY runner runner
COPY sandbox sandbox
RUN pip --python /opt/toolcell/bin/python install --no-cache-dir --no-deps .

FROM python:3.13-slim-trixie
ARG REVISION=unknown
LABEL org.opencontainers.image.title="toolcell" \
      org.opencontainers.image.description="Serves a FastMCP file to one user, each call confined and killable" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.13-slim-trixie"
# Debian keeps one version of tini a release, so naming it would only break the build at its next fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /nonexistent \
       --shell /usr/sbin/nologin runner
COPY --from=build /opt/toolcell /opt/toolcell
COPY sample_tools/hello.py /opt/tools/hello.py

# The user whose calls this container runs: give it at build time, or with `docker run --env`.
ARG RUNNER_USER=user
# Homes, store and state lie on one volume, so that staging a file can share its blocks with the store.
ENV RUNNER_USER=$RUNNER_USER \
    RUNNER_STORE=file:///tmp/.toolcell/store \
    RUNNER_STATE_DIR=/tmp/.toolcell/state \
    PATH=/opt/toolcell/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1

# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /opt/tools
EXPOSE 8000
# -I: a module beside the tool file must not be imported by a process that is not confined.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["/usr/bin/tini", "--", "runner", "serve", "--transport", "http", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/opt/tools/hello.py"]
