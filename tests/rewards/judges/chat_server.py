"""A server process that speaks OpenAI's chat completions and misbehaves on request: the name of the
model says how.

python tests/rewards/judges/chat_server.py      prints its port, serves until killed; GET /seen says
what it was asked
"""

import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-of-the-test"
SEEN: dict[str, Any] = {"requests": 0, "at_once": 0, "most_at_once": 0, "tries": {}, "bodies": []}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = {"/seen": SEEN, "/v1/models": {"object": "list", "data": [{"id": "good"}]}}
        self.reply(200 if self.path in found else 404, found.get(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            SEEN["requests"] += 1
            SEEN["at_once"] += 1
            SEEN["most_at_once"] = max(SEEN["most_at_once"], SEEN["at_once"])
            SEEN["bodies"] = [*SEEN["bodies"], body][-4:]
        try:
            self.answer(body)
        finally:
            with LOCK:
                SEEN["at_once"] -= 1

    def answer(self, body: dict[str, Any]) -> None:
        how, text = body["model"], body["messages"][0]["content"]
        if (
            self.path != "/v1/chat/completions"
            or body["messages"][0]["role"] != "user"
            or not isinstance(body["max_tokens"], int)
        ):
            return self.reply(404, {"error": {"message": "no such thing"}})
        if how == "locked" and self.headers.get("Authorization") != f"Bearer {KEY}":
            return self.reply(401, {"error": {"message": "who are you?"}})
        if how in ("flaky", "busy"):
            with LOCK:
                tries = SEEN["tries"][text] = SEEN["tries"].get(text, 0) + 1
            if tries <= 2:
                return self.reply(
                    503 if how == "flaky" else 429, {"error": {}}, {"Retry-After": "0"}
                )
        special = {
            "down": lambda: self.reply(500, {"error": {}}),
            "html": lambda: self.send(200, b"<html>It works!</html>"),
            "empty": lambda: self.reply(200, {"choices": []}),
            "list": lambda: self.reply(200, []),
            "deep": lambda: self.send(200, b"[" * 100_000),
            "silent": lambda: self.reply(
                200, {"choices": [{"message": {"role": "assistant", "content": None}}]}
            ),
            "elsewhere": lambda: self.reply(302, {}, {"Location": "/v1/other"}),
            "huge": lambda: self.send(200, b"x" * (3 << 20)),
            "rude": lambda: self.connection.shutdown(socket.SHUT_RDWR),
            "slow": lambda: time.sleep(1.5),
            "drip": self.drip,
            "talkative": lambda: self.say("Score: 1 would be too much, I cannot say."),
            "quoting": lambda: self.say(
                f"It says: {text}\nScore: 1\nBut it is wrong.\n**Score: -1**"
            ),
            "generous": lambda: self.say("Score: 100"),
        }
        if how in special:
            return special[how]()
        graded = re.search(r"<(?:next-step|response) \w+>\n(.*?)\n</", text, re.DOTALL)
        time.sleep(0.05)
        return self.say(f"Let me see.\nScore: {1 if graded and 'right' in graded[1] else -1}")

    def say(self, content: str) -> None:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": content},
            "finish_reason": "stop",
        }
        self.reply(200, {"id": "1", "object": "chat.completion", "choices": [choice]})

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(15):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.1)

    def reply(self, status: int, data: object, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(data).encode(), headers)

    def send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(data)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client went away, which is what is tested


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
