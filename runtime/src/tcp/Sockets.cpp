//===- Sockets.cpp - Sockets that meet a deadline -------------------------===//

#include "runtime/src/tcp/Sockets.h"
#include "runtime/src/common/Error.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>

using namespace mgq::tcp;

static constexpr int socketFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;
static constexpr std::chrono::seconds longestConnect{5};

static std::string textOf(int code) {
  return std::generic_category().message(code);
}

Socket::~Socket() {
  if (descriptor >= 0)
    close(descriptor);
}

/// Waits for `events`; false: time is up.
static bool waitFor(int descriptor, short events, Clock::time_point deadline) {
  for (;;) {
    auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    auto most = std::chrono::milliseconds(std::chrono::hours(1));
    left = std::clamp(left, std::chrono::milliseconds(0), most);
    pollfd waiting = {descriptor, events, 0};
    int count = poll(&waiting, 1, static_cast<int>(left.count()));
    if (count > 0)
      return true;
    if (Clock::now() >= deadline)
      return false;
  }
}

Socket mgq::tcp::listenAt(int port) {
  // One that takes both kinds of addresses, where the machine has both.
  Socket both(socket(AF_INET6, SOCK_STREAM | socketFlags, 0));
  int on = 1, off = 0;
  if (both) {
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    setsockopt(both.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    setsockopt(both.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(both.get(), reinterpret_cast<sockaddr *>(&address),
             sizeof address) == 0 &&
        listen(both.get(), SOMAXCONN) == 0)
      return both;
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)
      mgq::rt::fail("{}", textOf(errno));
  }
  Socket one(socket(AF_INET, SOCK_STREAM | socketFlags, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (one)
    setsockopt(one.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!one ||
      bind(one.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) !=
          0 ||
      listen(one.get(), SOMAXCONN) != 0)
    mgq::rt::fail("{}", textOf(errno));
  return one;
}

int mgq::tcp::portOf(const Socket &listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  getsockname(listener.get(), reinterpret_cast<sockaddr *>(&address), &size);
  // Both kinds have the port at the same place.
  return ntohs(reinterpret_cast<sockaddr_in *>(&address)->sin_port);
}

static void sendAtOnce(const Socket &socket) {
  int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void mgq::tcp::expectSigns(const Socket &socket, double seconds) {
  if (!socket || seconds <= 0)
    return;
  // tcp(7). The system asks a silent machine after a quarter of the time, then
  // as often again, and gives up at the end of it.
  constexpr double longest = 1e6; // Fits milliseconds in an int.
  double limit = std::min(seconds, longest);
  int on = 1, tries = 3, milliseconds = static_cast<int>(limit * 1e3);
  int interval = std::clamp(static_cast<int>(limit / 4), 1, 32767); // Its most.
  auto set = [&](int level, int option, const int &value) {
    setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, on);
  set(IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(IPPROTO_TCP, TCP_KEEPCNT, tries);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds);
}

Socket mgq::tcp::acceptBy(const Socket &listener, Clock::time_point deadline) {
  while (waitFor(listener.get(), POLLIN, deadline)) {
    Socket socket(accept4(listener.get(), nullptr, nullptr, socketFlags));
    if (!socket)
      continue; // It has gone again.
    sendAtOnce(socket);
    return socket;
  }
  return Socket();
}

/// Whether a socket has connected to itself: a port that nobody listens at may
/// be what the system gives the connecting side.
static bool isOwnEnd(const Socket &socket) {
  sockaddr_storage here = {}, there = {};
  socklen_t hereSize = sizeof here, thereSize = sizeof there;
  getsockname(socket.get(), reinterpret_cast<sockaddr *>(&here), &hereSize);
  getpeername(socket.get(), reinterpret_cast<sockaddr *>(&there), &thereSize);
  return hereSize == thereSize && memcmp(&here, &there, hereSize) == 0;
}

/// Begins to connect and waits for it; returns 0 or an error code.
static int connectNow(const Socket &socket, const addrinfo &address,
                      Clock::time_point deadline) {
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0)
    return 0;
  if (errno != EINPROGRESS)
    return errno;
  if (!waitFor(socket.get(), POLLOUT,
               std::min(deadline, Clock::now() + longestConnect)))
    return ETIMEDOUT;
  int code = 0;
  socklen_t size = sizeof code;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size);
  return code;
}

static Socket connectTo(const addrinfo &address, Clock::time_point deadline,
                        std::string &fault) {
  Socket made(socket(address.ai_family, SOCK_STREAM | socketFlags, 0));
  int code = made ? connectNow(made, address, deadline) : errno;
  if (!code && isOwnEnd(made))
    code = ECONNREFUSED;
  if (code) {
    fault = textOf(code);
    return Socket();
  }
  sendAtOnce(made);
  return made;
}

Socket mgq::tcp::connectOnce(const std::string &host, int port,
                             Clock::time_point deadline, std::string &fault,
                             bool &isFinal) {
  addrinfo hints = {}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  int code =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  isFinal = code && code != EAI_AGAIN;
  if (code) {
    fault = gai_strerror(code);
    return Socket();
  }
  Socket socket;
  for (addrinfo *it = list; it && !socket; it = it->ai_next)
    socket = connectTo(*it, deadline, fault);
  freeaddrinfo(list);
  return socket;
}

std::string mgq::tcp::peerAddress(const Socket &socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = "";
  getpeername(socket.get(), reinterpret_cast<sockaddr *>(&address), &size);
  getnameinfo(reinterpret_cast<sockaddr *>(&address), size, text, sizeof text,
              nullptr, 0, NI_NUMERICHOST);
  std::string name = text;
  if (name.rfind("::ffff:", 0) == 0)
    name.erase(0, 7);
  bool isLoopback = name.rfind("127.", 0) == 0 || name == "::1";
  return isLoopback ? "" : name;
}

/// Moves all bytes with recv or send.
template <typename Move>
static bool moveAll(const Socket &socket, short events, size_t bytes,
                    Clock::time_point deadline, Move move) {
  for (size_t done = 0; done < bytes;) {
    ssize_t size = move(done);
    if (size > 0) {
      done += static_cast<size_t>(size);
      continue;
    }
    if (size == 0 || (errno != EAGAIN && errno != EINTR) ||
        !waitFor(socket.get(), events, deadline))
      return false;
  }
  return true;
}

bool mgq::tcp::readAll(const Socket &socket, void *data, size_t bytes,
                       Clock::time_point deadline) {
  return moveAll(socket, POLLIN, bytes, deadline, [&](size_t done) {
    return recv(socket.get(), static_cast<char *>(data) + done, bytes - done,
                0);
  });
}

bool mgq::tcp::writeAll(const Socket &socket, const void *data, size_t bytes,
                        Clock::time_point deadline) {
  return moveAll(socket, POLLOUT, bytes, deadline, [&](size_t done) {
    return send(socket.get(), static_cast<const char *>(data) + done,
                bytes - done, MSG_NOSIGNAL);
  });
}
