# The service: docker build -t willitfit . && docker run --rm -p 8000:8000 willitfit
FROM python:3.13-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/willitfit && /opt/willitfit/bin/pip install --no-cache-dir '.[service]' && find /opt/willitfit -name __pycache__ -prune -exec rm -rf {} +

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="willitfit" \
      org.opencontainers.image.description="Whether a transformer fits on a GPU, why, what would make it fit, how long, how much" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/willitfit /opt/willitfit
ENV PATH=/opt/willitfit/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
ENTRYPOINT ["willitfit"]
CMD ["serve", "--host", "0.0.0.0"]
