"""Stands for every verb of the main job: leaves what the real one would, and notes that it ran."""

import asyncio
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from protocol import config as configuration
from protocol.bus import connect
from protocol.records import ActorStatus, PolicyVersion, Probe


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


async def actor(config):
    url = f"http://{config.actor.host}:{config.actor.port}"
    server = HTTPServer((config.actor.host, config.actor.port), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with connect(config.nats, config.run) as bus:
        while True:
            policy = await bus.policy()
            version = policy.version if policy else 0
            await bus.put_actor(ActorStatus("fake", url, "policy", version, serving=True, time=time.time()))
            await asyncio.sleep(0.1)


async def learner(config):
    while not (config.path / "rollouts.done").exists():
        await asyncio.sleep(0.05)
    async with connect(config.nats, config.run) as bus:
        probe = Probe(b"", b"", 0.05)
        await bus.publish_policy(PolicyVersion(config.run, config.learner.steps, "", {}, probe, final=True))


def main(verb, *arguments):
    changes = [item.removeprefix("--set=") for item in arguments if item.startswith("--set=")]
    config = configuration.load(arguments[arguments.index("--config") + 1], changes)
    named = f"{verb} {arguments[arguments.index('--label') + 1]}" if "--label" in arguments else verb
    with (config.path / "calls.txt").open("a") as calls:
        calls.write(named + "\n")
    if (config.path / f"{named}.fails").exists():
        sys.exit(f"{named} was told to fail")
    if verb == "nats" or (config.path / f"{named}.hangs").exists():
        time.sleep(600)
    base = config.path / config.model.folder
    products = {
        "demonstrations": base / "demonstrations.npz",
        "warmstart": base / "model.safetensors",
        "select": config.path / "pool.json",
        "rollouts": config.path / "rollouts.done",
        "evaluate": config.path / "evaluation" / "rows.jsonl",
    }
    if verb in products:
        products[verb].parent.mkdir(exist_ok=True)
        products[verb].touch()
    if verb in ("actor", "learner"):
        asyncio.run({"actor": actor, "learner": learner}[verb](config))


if __name__ == "__main__":
    main(*sys.argv[1:])
