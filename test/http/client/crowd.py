# crowd.py PORT POLLS STREAMS PATH: many clients, in one process.
#
# Opens so many long-polls and event streams of a path, which has the cursor of
# the head, and prints "open".  After a line of input it waits until each has
# had an entry, and prints how many had one and after how many ms.  Another line
# ends it.
import resource
import select
import socket
import sys
import time

port, polls, streams, path = sys.argv[1:]
number = int(polls) + int(streams)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
clients = {}
text = {}
epoll = select.epoll()

for i in range(number):
    client = socket.create_connection(('127.0.0.1', int(port)))
    accept = 'application/json' if i < int(polls) else 'text/event-stream'
    client.sendall(f'GET {path} HTTP/1.1\r\nHost: localhost\r\n'
                   f'Accept: {accept}\r\n\r\n'.encode())
    clients[client.fileno()] = client
    text[client.fileno()] = b''
    epoll.register(client, select.EPOLLIN)
print('open', flush=True)

sys.stdin.readline()
begun = time.monotonic()
left = set(clients)
while left:
    events = epoll.poll(60)
    if not events:
        break
    for descriptor, _ in events:
        got = clients[descriptor].recv(65536)
        text[descriptor] += got
        if not got:
            epoll.unregister(descriptor)
        elif b'"upsert"' in text[descriptor]:
            left.discard(descriptor)
print(number - len(left), round(1000 * (time.monotonic() - begun)), flush=True)
sys.stdin.readline()
