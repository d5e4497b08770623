//===- Sockets.h - Sockets that meet a deadline -----------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_TCP_SOCKETS_H
#define MGQ_RUNTIME_TCP_SOCKETS_H

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace mgq::tcp {

using Clock = std::chrono::steady_clock;

/// An open descriptor, -1: none. Sockets never block.
class Socket {
public:
  explicit Socket(int descriptor = -1) : descriptor(descriptor) {}
  Socket(Socket &&other) noexcept : descriptor(other.release()) {}
  Socket &operator=(Socket &&other) noexcept {
    std::swap(descriptor, other.descriptor);
    return *this;
  }
  ~Socket();

  int get() const { return descriptor; }
  int release() { return std::exchange(descriptor, -1); }
  explicit operator bool() const { return descriptor >= 0; }

private:
  int descriptor;
};

/// Listens on all addresses of this machine, at `port`; 0: a free one. Throws
/// rt::Error with the system's text.
Socket listenAt(int port);
int portOf(const Socket &listener);

/// The next who connects; none after the deadline.
Socket acceptBy(const Socket &listener, Clock::time_point deadline);

/// Tries once to connect. Returns none with a text in `fault`, which `isFinal`
/// if another try is of no use: the name is unknown.
Socket connectOnce(const std::string &host, int port,
                   Clock::time_point deadline, std::string &fault,
                   bool &isFinal);

/// Ends the connection when the machine of the other end has not been heard of
/// for `seconds` (0: never), also where nothing is sent.
void expectSigns(const Socket &socket, double seconds);

/// Numeric address of the other end; empty: it is on this machine.
std::string peerAddress(const Socket &socket);

/// All bytes; false: the other end is gone, or time is up.
bool readAll(const Socket &socket, void *data, size_t bytes,
             Clock::time_point deadline);
bool writeAll(const Socket &socket, const void *data, size_t bytes,
              Clock::time_point deadline);

} // namespace mgq::tcp

#endif // MGQ_RUNTIME_TCP_SOCKETS_H
