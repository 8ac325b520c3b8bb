"""cell.py PORT TOKEN EXPRESSION: evaluates an expression in a kernel of the notebook server and prints the result."""

import json
import sys
import urllib.request
import uuid

import websocket

port, token, expression = sys.argv[1:]
headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
request = urllib.request.Request(f"http://localhost:{port}/api/kernels", b"{}", headers, method="POST")
kernel = json.load(urllib.request.urlopen(request, timeout=60))["id"]
channel = websocket.create_connection(f"ws://localhost:{port}/api/kernels/{kernel}/channels?token={token}", timeout=60)
channel.send(json.dumps({
    "header": {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": "", "version": "5.3"},
    "parent_header": {}, "metadata": {}, "channel": "shell",
    "content": {"code": expression, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True},
}))
while True:
    message = json.loads(channel.recv())
    if message["msg_type"] == "execute_result":
        print(message["content"]["data"]["text/plain"])
        break
    if message["msg_type"] == "error":
        sys.exit(message["content"]["evalue"])
channel.close()
