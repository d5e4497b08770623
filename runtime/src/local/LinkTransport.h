//===- LinkTransport.h - An artificial link between ranks -------*- C++ -*-===//
//
// For tests and measurements on one machine: a transport around another one
// whose messages arrive no earlier than a link would allow. Each directed pair
// of ranks has a link of its own:
//
//   start = max(now, link free)   free = start + bytes / bandwidth
//   arrival = free + delay
//
// A message of `start` and `arrival` goes ahead of each message, so it works
// across processes of one machine, too, whose clocks agree. Whoever waits
// sleeps. docs/Overlap.md says how to use it.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_LOCAL_LINKTRANSPORT_H
#define MGQ_RUNTIME_LOCAL_LINKTRANSPORT_H

#include "runtime/include/rt.h"
#include <deque>
#include <optional>
#include <vector>

namespace mgq::rt {

/// What a link is like.
struct LinkModel {
  double delay = 0;          ///< Seconds.
  double bandwidth = 0;      ///< Bytes per second; 0: no limit.
  bool replicasOnly = false; ///< Not between the stages of a replica.
};

/// The link that the environment variable MGQ_TEST_LINK describes, if any.
/// Throws UsageError.
std::optional<LinkModel> linkOfEnvironment();

/// One rank's end.
class LinkTransport {
public:
  /// `inner` must live longer. `stages`: ranks of a replica.
  LinkTransport(mgq_transport &inner, const LinkModel &link, int32_t stages);
  LinkTransport(const LinkTransport &) = delete;
  LinkTransport &operator=(const LinkTransport &) = delete;

  mgq_transport &table() { return outer; }

private:
  /// A message. The first part of a linked one are its times.
  struct Open {
    int64_t parts[2] = {-1, -1}; ///< Requests of `inner`.
    int part = 0;                ///< The first that is not done.
    mgq_span times = {};         ///< Start and arrival.
    double ready = 0;            ///< When this end may call it done.
    bool linked = false, isSend = false;
  };

  bool isLinked(int32_t peer) const;
  int32_t begin(bool isSend, void *data, int64_t bytes, int32_t peer,
                int32_t tag, int64_t *request);
  int32_t advance(Open &open);
  void end(int64_t request, mgq_span *span);
  int32_t sleepUntil(double time);
  int32_t wait(int64_t request, mgq_span *span);
  int32_t test(int64_t request, int32_t *done, mgq_span *span);
  int32_t waitAny(const int64_t *requests, int32_t count);
  int32_t allGather(const void *mine, int64_t bytes, void *all);

  mgq_transport &inner;
  mgq_transport outer;
  LinkModel link;
  int32_t stages;
  std::vector<double> freeAt; ///< By peer: when the link to it is free.
  std::deque<Open> messages;  // Addresses stay.
  std::vector<int64_t> unused, waited;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_LINKTRANSPORT_H
