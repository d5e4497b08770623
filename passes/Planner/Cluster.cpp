//===- Cluster.cpp - Reads cluster files ----------------------------------===//
//
// The format is in docs/Planner.md.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Cluster.h"
#include "passes/Planner/DeviceTable.h"
#include "passes/Planner/YamlTree.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mgq::planner;
using llvm::Error;
using llvm::Expected;
using llvm::StringRef;
using llvm::Twine;

/// Share of a data sheet's peak that kernels reach, unless the file says so.
static constexpr double kEfficiency = 0.6;
/// More devices than any plan has are a slip of the keyboard.
static constexpr int64_t kMostDevices = 4096;

namespace {
/// Builds a cluster from a tree.
class Builder {
public:
  explicit Builder(const YamlTree &tree) : tree(tree) {}
  Expected<Cluster> build();

private:
  Error quantity(const YamlNode &map, StringRef key, UnitKind kind,
                 double &value) const;
  Error count(const YamlNode &map, int64_t &value) const;
  Expected<Device> device(const YamlNode &node) const;
  Expected<Link> link(const YamlNode &node, StringRef what) const;
  Error addNodes(const YamlNode &node);
  Error addNode(const YamlNode &node, const std::string &name);
  void linkAll();
  Error addOverride(const YamlNode &node);
  /// Devices of "node0" or "node0/gpu1".
  std::vector<int> named(StringRef name) const;

  const YamlTree &tree;
  llvm::StringMap<const YamlNode *> types; ///< Kinds that the file describes.
  Cluster cluster;
  std::vector<std::string> nodeNames;
  std::vector<std::string> paths; ///< "node0/gpu1", by device.
  std::vector<Link> nodeLinks;    ///< Inside nodes.
  Link between;
};
} // namespace

Error Builder::quantity(const YamlNode &map, StringRef key, UnitKind kind,
                        double &value) const {
  const YamlNode *node = map.find(key);
  if (!node)
    return Error::success();
  std::optional<double> parsed;
  if (node->kind == YamlNode::Scalar)
    parsed = parseQuantity(node->text, kind);
  if (!parsed)
    return tree.error(*node, "'" + key + "' is '" + node->text +
                                 "', expected a number or a quantity such as " +
                                 unitExample(kind));
  value = *parsed;
  return Error::success();
}

Error Builder::count(const YamlNode &map, int64_t &value) const {
  const YamlNode *node = map.find("count");
  value = 1;
  if (!node)
    return Error::success();
  if (node->kind != YamlNode::Scalar ||
      StringRef(node->text).getAsInteger(10, value) || value < 1 ||
      value > kMostDevices)
    return tree.error(*node, "'count' is '" + node->text +
                                 "', expected a whole number from 1 to " +
                                 Twine(kMostDevices));
  return Error::success();
}

Expected<Device> Builder::device(const YamlNode &node) const {
  static const StringRef keys[] = {"type",       "count",     "flops_f32",
                                   "flops_bf16", "bandwidth", "memory",
                                   "efficiency"};
  if (Error bad = tree.expectKeys(node, "a device", keys))
    return std::move(bad);
  Device result;
  double efficiency = 1;
  if (const YamlNode *type = node.find("type")) {
    if (type->kind != YamlNode::Scalar)
      return tree.error(*type, "expected the name of a device");
    auto own = types.find(type->text);
    if (own != types.end()) {
      if (&node == own->second)
        return tree.error(*type, "a device cannot be of its own type");
      Expected<Device> described = device(*own->second);
      if (!described)
        return described.takeError();
      result = std::move(*described);
      result.name = type->text;
    } else if (std::optional<Device> known = knownDevice(type->text)) {
      result = std::move(*known);
      efficiency = kEfficiency;
    } else {
      std::string more;
      for (const auto &entry : types)
        more += ", " + entry.first().str();
      return tree.error(*type, "unknown device '" + type->text +
                                   "'; known: " + knownDeviceNames() + more +
                                   "; or give flops_f32, flops_bf16, "
                                   "bandwidth and memory");
    }
  }
  if (Error bad = quantity(node, "efficiency", UnitKind::Plain, efficiency))
    return std::move(bad);
  if (const YamlNode *given = node.find("efficiency"))
    if (efficiency <= 0 || efficiency > 1)
      return tree.error(*given, "'efficiency' is '" + given->text +
                                    "', expected a share above 0, up to 1");
  // Numbers of the file are what kernels reach, unless it gives a share too.
  result.f32Flops *= efficiency;
  result.bf16Flops *= efficiency;
  double share = node.find("efficiency") ? efficiency : 1;
  double f32 = result.f32Flops, bf16 = result.bf16Flops;
  if (Error bad = quantity(node, "flops_f32", UnitKind::Flops, f32))
    return std::move(bad);
  if (Error bad = quantity(node, "flops_bf16", UnitKind::Flops, bf16))
    return std::move(bad);
  result.f32Flops = node.find("flops_f32") ? f32 * share : f32;
  result.bf16Flops = node.find("flops_bf16") ? bf16 * share : bf16;
  if (result.bf16Flops == 0)
    result.bf16Flops = result.f32Flops;
  if (result.f32Flops <= 0)
    return tree.error(node, "a device needs 'type' or 'flops_f32'");
  if (Error bad = quantity(node, "bandwidth", UnitKind::BytesPerSecond,
                           result.bytesPerSecond))
    return std::move(bad);
  double memory = double(result.memoryBytes);
  if (Error bad = quantity(node, "memory", UnitKind::Bytes, memory))
    return std::move(bad);
  if (memory > 9e18)
    return tree.error(*node.find("memory"), "more memory than there can be");
  result.memoryBytes = int64_t(memory);
  return result;
}

Expected<Link> Builder::link(const YamlNode &node, StringRef what) const {
  if (Error bad = tree.expectKeys(node, what, {"latency", "bandwidth"}))
    return std::move(bad);
  Link result;
  if (Error bad = quantity(node, "latency", UnitKind::Seconds, result.latency))
    return std::move(bad);
  if (Error bad = quantity(node, "bandwidth", UnitKind::BytesPerSecond,
                           result.bytesPerSecond))
    return std::move(bad);
  return result;
}

Error Builder::addNode(const YamlNode &node, const std::string &name) {
  if (llvm::is_contained(nodeNames, name))
    return tree.error(node, "two nodes are named '" + name + "'");
  int number = nodeNames.size(), index = 0;
  nodeNames.push_back(name);
  Link inside;
  if (const YamlNode *given = node.find("link")) {
    Expected<Link> parsed = link(*given, "a link");
    if (!parsed)
      return parsed.takeError();
    inside = *parsed;
  }
  nodeLinks.push_back(inside);
  const YamlNode *devices = node.find("devices");
  if (!devices || devices->kind != YamlNode::Sequence ||
      devices->children.empty())
    return tree.error(devices ? *devices : node,
                      "a node needs 'devices', a list with at least one");
  for (const YamlNode &child : devices->children) {
    Expected<Device> parsed = device(child);
    if (!parsed)
      return parsed.takeError();
    int64_t times = 1;
    if (Error bad = count(child, times))
      return bad;
    for (int64_t k = 0; k < times; ++k) {
      if (int64_t(cluster.devices.size()) >= kMostDevices)
        return tree.error(child,
                          "more than " + Twine(kMostDevices) + " devices");
      Device copy = *parsed;
      std::string path = name + (copy.name.empty() ? "/device" : "/gpu") +
                         std::to_string(index++);
      copy.name = copy.name.empty() ? path : path + " (" + copy.name + ")";
      copy.node = number;
      paths.push_back(path);
      cluster.devices.push_back(std::move(copy));
    }
  }
  return Error::success();
}

Error Builder::addNodes(const YamlNode &node) {
  if (Error bad =
          tree.expectKeys(node, "a node", {"name", "count", "devices", "link"}))
    return bad;
  int64_t times = 1;
  if (Error bad = count(node, times))
    return bad;
  std::string stem = "node";
  bool named = false;
  if (const YamlNode *name = node.find("name")) {
    if (name->kind != YamlNode::Scalar || name->text.empty() ||
        StringRef(name->text).contains('/'))
      return tree.error(*name, "expected a name without '/'");
    stem = name->text;
    named = true;
  }
  for (int64_t k = 0; k < times; ++k) {
    std::string name = stem;
    if (!named)
      name += std::to_string(nodeNames.size());
    else if (times > 1)
      name += std::to_string(k);
    if (Error bad = addNode(node, name))
      return bad;
  }
  return Error::success();
}

void Builder::linkAll() {
  size_t count = cluster.devices.size();
  cluster.links.resize(count * count);
  for (size_t from = 0; from < count; ++from)
    for (size_t to = 0; to < count; ++to)
      if (from != to)
        cluster.links[from * count + to] =
            cluster.devices[from].node == cluster.devices[to].node
                ? nodeLinks[cluster.devices[from].node]
                : between;
}

std::vector<int> Builder::named(StringRef name) const {
  std::vector<int> result;
  for (size_t d = 0; d < paths.size(); ++d)
    if (paths[d] == name || nodeNames[cluster.devices[d].node] == name)
      result.push_back(d);
  return result;
}

Error Builder::addOverride(const YamlNode &node) {
  if (Error bad =
          tree.expectKeys(node, "a link", {"between", "latency", "bandwidth"}))
    return bad;
  const YamlNode *ends = node.find("between");
  if (!ends || ends->kind != YamlNode::Sequence || ends->children.size() != 2)
    return tree.error(ends ? *ends : node,
                      "expected 'between: [A, B]' with two nodes or devices");
  std::vector<int> sides[2];
  for (int side = 0; side < 2; ++side) {
    const YamlNode &end = ends->children[side];
    sides[side] = named(end.text);
    if (sides[side].empty())
      return tree.error(end, "unknown node or device '" + end.text +
                                 "'; nodes: " + llvm::join(nodeNames, ", ") +
                                 "; devices: " + paths.front() + " to " +
                                 paths.back());
  }
  for (int a : sides[0])
    for (int b : sides[1]) {
      if (a == b)
        continue;
      for (auto [from, to] : {std::pair(a, b), std::pair(b, a)}) {
        Link &link = cluster.links[from * cluster.devices.size() + to];
        if (Error bad =
                quantity(node, "latency", UnitKind::Seconds, link.latency))
          return bad;
        if (Error bad = quantity(node, "bandwidth", UnitKind::BytesPerSecond,
                                 link.bytesPerSecond))
          return bad;
      }
    }
  return Error::success();
}

Expected<Cluster> Builder::build() {
  const YamlNode &root = tree.root;
  if (Error bad = tree.expectKeys(root, "a cluster",
                                  {"nodes", "link", "links", "devices"}))
    return std::move(bad);
  if (const YamlNode *devices = root.find("devices")) {
    if (devices->kind != YamlNode::Mapping)
      return tree.error(*devices, "expected devices by name, a mapping");
    for (size_t k = 0; k < devices->keys.size(); ++k) {
      const YamlNode &described = devices->children[k];
      const YamlNode *type = described.find("type");
      if (type && devices->find(type->text))
        return tree.error(*type, "a described device is of a known type, not "
                                 "of one of this file");
      types[devices->keys[k]] = &described;
    }
  }
  if (const YamlNode *given = root.find("link")) {
    Expected<Link> parsed = link(*given, "a link between nodes");
    if (!parsed)
      return parsed.takeError();
    between = *parsed;
  }
  const YamlNode *nodes = root.find("nodes");
  if (!nodes || nodes->kind != YamlNode::Sequence || nodes->children.empty())
    return tree.error(nodes ? *nodes : root,
                      "a cluster needs 'nodes', a list with at least one");
  for (const YamlNode &node : nodes->children)
    if (Error bad = addNodes(node))
      return std::move(bad);
  linkAll();
  if (const YamlNode *links = root.find("links")) {
    if (links->kind != YamlNode::Sequence)
      return tree.error(*links, "expected a list of links");
    for (const YamlNode &node : links->children)
      if (Error bad = addOverride(node))
        return std::move(bad);
  }
  return std::move(cluster);
}

void Cluster::reserve(int64_t bytes) {
  for (Device &device : devices) {
    device.reservedBytes = std::min(bytes, device.memoryBytes / 4);
    device.memoryBytes -= device.reservedBytes;
  }
}

Cluster Cluster::unknownGpus(int ranks) {
  constexpr Link kBus{10e-6, 20e9};
  Device device = *knownDevice("RTX 4090");
  device.f32Flops *= kEfficiency;
  device.bf16Flops *= kEfficiency;
  device.memoryBytes = 0;
  Cluster cluster;
  for (int rank = 0; rank < std::max(1, ranks); ++rank) {
    device.name = "gpu" + std::to_string(rank);
    cluster.devices.push_back(device);
  }
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      cluster.links.push_back(from == to ? Link() : kBus);
  return cluster;
}

Expected<Cluster> Cluster::parse(StringRef yaml, StringRef path) {
  Expected<YamlTree> tree = parseYaml(yaml, path);
  if (!tree)
    return tree.takeError();
  return Builder(*tree).build();
}

Expected<Cluster> Cluster::read(StringRef path) {
  auto file = llvm::MemoryBuffer::getFile(path, /*IsText=*/true);
  if (!file)
    return llvm::createStringError(file.getError(),
                                   "cannot read the cluster file " + path +
                                       ": " + file.getError().message());
  return parse((*file)->getBuffer(), path);
}
