//===- Mailbox.h - What has come, and what is waited for --------*- C++ -*-===//
#ifndef MGQ_RUNTIME_TCP_MAILBOX_H
#define MGQ_RUNTIME_TCP_MAILBOX_H

#include "runtime/src/process/ProcessTransport.h"
#include <algorithm>
#include <optional>

namespace mgq::tcp {

/// A message that this rank waits for.
struct Post {
  process::Command *command;
  int64_t index; ///< Of the command.
  std::byte *to;
  int64_t bytes;
  int32_t tag;
};

/// One that nobody waits for yet.
struct Arrival {
  int32_t tag;
  int64_t bytes;
  /// Bytes of a short message; of a long one, which is still at its sender,
  /// nothing.
  std::vector<std::byte> data;
  int64_t offered = -1;            ///< Its sender's command.
  process::Command *own = nullptr; ///< The same, of a message to oneself.
};

/// The messages of one sender, in order.
class Mailbox {
public:
  /// Takes out the oldest that bears a tag.
  std::optional<Post> takePost(int32_t tag) { return take(posts, tag); }
  std::optional<Arrival> takeArrival(int32_t tag) {
    return take(arrivals, tag);
  }
  void add(const Post &post) { posts.push_back(post); }
  void add(Arrival arrival) { arrivals.push_back(std::move(arrival)); }

private:
  template <typename T>
  static std::optional<T> take(std::vector<T> &list, int32_t tag) {
    auto it = std::find_if(list.begin(), list.end(),
                           [&](const T &each) { return each.tag == tag; });
    if (it == list.end())
      return std::nullopt;
    T found = std::move(*it);
    list.erase(it);
    return found;
  }

  std::vector<Post> posts;
  std::vector<Arrival> arrivals;
};

} // namespace mgq::tcp

#endif // MGQ_RUNTIME_TCP_MAILBOX_H
