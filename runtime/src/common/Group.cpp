//===- Group.cpp - All ranks of a run -------------------------------------===//

#include "runtime/src/common/Group.h"
#include <algorithm>
#include <cstring>

using namespace mgq::rt;

bool Group::inProcess() const { return strcmp(transport.name, "threads") == 0; }

void Group::failTransport() { throw Error(transport.error(transport.self)); }

int64_t Group::send(const void *data, int64_t bytes, int32_t peer,
                    int32_t tag) {
  int64_t request = -1;
  if (transport.send(transport.self, data, bytes, peer, tag, &request))
    failTransport();
  return request;
}

int64_t Group::receive(void *data, int64_t bytes, int32_t peer, int32_t tag) {
  int64_t request = -1;
  if (transport.receive(transport.self, data, bytes, peer, tag, &request))
    failTransport();
  return request;
}

void Group::wait(int64_t request, mgq_span *span) {
  if (transport.wait(transport.self, request, span))
    failTransport();
}

bool Group::test(int64_t request, mgq_span *span) {
  int32_t done = 0;
  if (transport.test(transport.self, request, &done, span))
    failTransport();
  return done != 0;
}

void Group::waitAny(const std::vector<int64_t> &requests) {
  if (!requests.empty() &&
      transport.wait_any(transport.self, requests.data(),
                         static_cast<int32_t>(requests.size())))
    failTransport();
}

void Group::sendNow(const void *data, int64_t bytes, int32_t peer,
                    int32_t tag) {
  wait(send(data, bytes, peer, tag));
}

void Group::receiveNow(void *data, int64_t bytes, int32_t peer, int32_t tag) {
  wait(receive(data, bytes, peer, tag));
}

void Group::allGather(const void *mine, int64_t bytes, void *all) {
  if (transport.all_gather(transport.self, mine, bytes, all))
    failTransport();
}

std::vector<std::string> Group::gatherText(const std::string &mine) {
  auto sizes = allGather(static_cast<int64_t>(mine.size()));
  if (rank() != 0) {
    sendNow(mine.data(), static_cast<int64_t>(mine.size()), 0, TagGather);
    return {};
  }
  std::vector<std::string> texts{mine};
  for (int32_t peer = 1; peer < size(); ++peer) {
    texts.emplace_back(sizes[peer], '\0');
    receiveNow(texts.back().data(), sizes[peer], peer, TagGather);
  }
  return texts;
}

int32_t Group::firstFault(const char *text, std::string &itsText) {
  struct Word {
    char faulty;
    char text[1023]; // The rest is cut; its own rank has it whole.
  };
  Word mine = {};
  if (text) {
    mine.faulty = 1;
    strncpy(mine.text, text, sizeof mine.text - 1);
  }
  std::vector<Word> all = allGather(mine);
  auto isFaulty = [](const Word &word) { return word.faulty != 0; };
  auto first = std::find_if(all.begin(), all.end(), isFaulty);
  if (first == all.end())
    return -1;
  itsText = first->text;
  commonFault = std::all_of(all.begin(), all.end(), [&](const Word &word) {
    return word.faulty && itsText == word.text;
  });
  return static_cast<int32_t>(first - all.begin());
}
