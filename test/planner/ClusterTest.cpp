//===- ClusterTest.cpp - Cluster files and devices ------------------------===//

#include "passes/Planner/Cluster.h"
#include "passes/Planner/DeviceTable.h"
#include "passes/Planner/PlanText.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace mgq::planner;
using testing::HasSubstr;
using testing::StartsWith;

namespace {

constexpr int64_t kGiB = int64_t(1) << 30;

std::string failure(llvm::StringRef yaml) {
  llvm::Expected<Cluster> cluster = Cluster::parse(yaml, "c.yaml");
  return cluster ? "" : llvm::toString(cluster.takeError());
}

// A plan may not take what the driver and libraries need, but small devices
// keep most of what they have, and unlimited ones stay so.
TEST(Cluster, ReservesMemory) {
  llvm::Expected<Cluster> cluster = Cluster::parse(
      "nodes: [{devices: [{type: RTX 4090}, {flops_f32: 1 TFLOP/s, memory: "
      "2 GiB}, {flops_f32: 1 TFLOP/s}]}]",
      "c.yaml");
  ASSERT_TRUE(bool(cluster)) << llvm::toString(cluster.takeError());
  cluster->reserve(kGiB);
  EXPECT_EQ(cluster->devices[0].memoryBytes, 23 * kGiB);
  EXPECT_EQ(cluster->devices[1].memoryBytes, kGiB * 3 / 2);
  EXPECT_EQ(cluster->devices[2].memoryBytes, 0);
  EXPECT_EQ(memoryText(cluster->devices[0]),
            "23.0 GiB (24.0 GiB less 1.00 GiB for libraries)");
  EXPECT_EQ(memoryText(cluster->devices[1]),
            "1.50 GiB (2.00 GiB less 512 MiB for libraries)");
}

// Where no GPU is described, plans have no limit of memory.
TEST(Cluster, UnknownGpus) {
  Cluster cluster = Cluster::unknownGpus(3);
  ASSERT_EQ(cluster.devices.size(), 3u);
  ASSERT_EQ(cluster.links.size(), 9u);
  EXPECT_EQ(cluster.devices[2].memoryBytes, 0);
  EXPECT_GT(cluster.devices[2].bf16Flops, 50e12);
  EXPECT_EQ(cluster.link(1, 1).bytesPerSecond, 0);
  EXPECT_DOUBLE_EQ(cluster.link(0, 2).bytesPerSecond, 20e9);
}

TEST(Cluster, ReadsFile) {
  llvm::Expected<Cluster> read =
      Cluster::read(MGQ_TEST_DATA "/clusters/two-nodes.yaml");
  ASSERT_TRUE(bool(read)) << llvm::toString(read.takeError());
  ASSERT_EQ(read->devices.size(), 10u);
  const Device &fast = read->devices[5], &slow = read->devices[9];
  EXPECT_EQ(fast.name, "fast1/gpu1 (RTX 4090)");
  EXPECT_EQ(fast.node, 1);
  EXPECT_DOUBLE_EQ(fast.bf16Flops, 0.7 * 165.2e12);
  EXPECT_DOUBLE_EQ(fast.bytesPerSecond, 1008e9);
  EXPECT_EQ(fast.memoryBytes, 24 * kGiB);
  EXPECT_EQ(slow.name, "slow/gpu1 (old)");
  EXPECT_DOUBLE_EQ(slow.f32Flops, 14e12);
  EXPECT_DOUBLE_EQ(slow.bf16Flops, 14e12);
  EXPECT_EQ(slow.memoryBytes, 16 * kGiB);
  // Inside a node, between nodes, overrides of nodes and of devices.
  EXPECT_DOUBLE_EQ(read->link(0, 1).bytesPerSecond, 20e9);
  EXPECT_DOUBLE_EQ(read->link(1, 4).bytesPerSecond, 12.5e9);
  EXPECT_DOUBLE_EQ(read->link(1, 4).latency, 30e-6);
  EXPECT_DOUBLE_EQ(read->link(8, 2).bytesPerSecond, 1.25e9);
  EXPECT_DOUBLE_EQ(read->link(8, 2).latency, 30e-6);
  EXPECT_DOUBLE_EQ(read->link(3, 4).latency, 20e-6);
  EXPECT_DOUBLE_EQ(read->link(4, 3).latency, 20e-6);
  EXPECT_DOUBLE_EQ(read->link(3, 3).seconds(1000), 0);
}

TEST(Cluster, Errors) {
  EXPECT_EQ(
      failure("nodes:\n  - devices:\n      - {type: RTX 9999}\n").substr(0, 80),
      std::string("c.yaml:3:16: unknown device 'RTX 9999'; known: A10, "
                  "A30, A40, A100-40GB, A100-80GB, B200")
          .substr(0, 80));
  EXPECT_EQ(failure("nodes:\n  - devices:\n      - flops_f32: fast\n"),
            "c.yaml:3:20: 'flops_f32' is 'fast', expected a number or a "
            "quantity such as 165 TFLOP/s");
  EXPECT_EQ(failure("nodes:\n  - device: []\n"),
            "c.yaml:2:5: unknown key 'device' of a node; known: name, count, "
            "devices, link");
  EXPECT_EQ(failure("nodes:\n  - devices: []\n"),
            "c.yaml:2:14: a node needs 'devices', a list with at least one");
  EXPECT_EQ(failure("link: {}\n"),
            "c.yaml:1:1: a cluster needs 'nodes', a list with at least one");
  EXPECT_EQ(failure("[]\n"), "c.yaml:1:1: expected a cluster, a mapping with "
                             "some of: nodes, link, links, devices");
  EXPECT_EQ(failure(""), "c.yaml:1:1: expected a cluster, a mapping with some "
                         "of: nodes, link, links, devices");
  EXPECT_EQ(failure("nodes:\n  - count: 0\n    devices: [{type: T4}]\n"),
            "c.yaml:2:12: 'count' is '0', expected a whole number from 1 to "
            "4096");
  EXPECT_EQ(failure("nodes:\n  - devices: [{type: T4, efficiency: 2}]\n"),
            "c.yaml:2:38: 'efficiency' is '2', expected a share above 0, up to "
            "1");
  EXPECT_EQ(failure("nodes:\n  - devices: [{memory: 1 GiB}]\n"),
            "c.yaml:2:15: a device needs 'type' or 'flops_f32'");
  EXPECT_EQ(failure("nodes:\n  - devices: [{type: T4}]\nlinks:\n"
                    "  - between: [node0, node1]\n"),
            "c.yaml:4:22: unknown node or device 'node1'; nodes: node0; "
            "devices: node0/gpu0 to node0/gpu0");
  EXPECT_EQ(failure("nodes:\n  - {name: a, devices: [{type: T4}]}\n"
                    "  - {name: a, devices: [{type: T4}]}\n"),
            "c.yaml:3:5: two nodes are named 'a'");
  EXPECT_EQ(failure("nodes: 1\nnodes: 2\n"),
            "c.yaml:2:1: key 'nodes' stands twice");
  EXPECT_THAT(failure("nodes:\n  - devices: [\n"), StartsWith("c.yaml:"));
  llvm::Expected<Cluster> none = Cluster::read("no/such.yaml");
  ASSERT_FALSE(bool(none));
  EXPECT_THAT(llvm::toString(none.takeError()),
              StartsWith("cannot read the cluster file no/such.yaml: "));
}

TEST(Cluster, Quantities) {
  EXPECT_EQ(parseQuantity("24 GiB", UnitKind::Bytes), 24.0 * kGiB);
  EXPECT_EQ(parseQuantity("80GB", UnitKind::Bytes), 80e9);
  EXPECT_EQ(parseQuantity("100", UnitKind::Bytes), 100);
  EXPECT_EQ(parseQuantity("1e3", UnitKind::Bytes), 1000);
  EXPECT_EQ(parseQuantity("165 TFLOP/s", UnitKind::Flops), 165e12);
  EXPECT_EQ(parseQuantity("1 PFLOPS", UnitKind::Flops), 1e15);
  EXPECT_EQ(parseQuantity("200 Gbit/s", UnitKind::BytesPerSecond), 25e9);
  EXPECT_EQ(parseQuantity("25 GB/s", UnitKind::BytesPerSecond), 25e9);
  EXPECT_NEAR(*parseQuantity("10 us", UnitKind::Seconds), 1e-5, 1e-12);
  for (llvm::StringRef wrong : {"", "GiB", "-1 GiB", "1 Gib", "1 GB/s", "nan",
                                "inf", "1 QB", "1 GiB GiB"})
    EXPECT_FALSE(parseQuantity(wrong, UnitKind::Bytes)) << wrong.str();
}

TEST(Cluster, KnownDevices) {
  EXPECT_EQ(knownDevice("NVIDIA GeForce RTX 3090")->memoryBytes, 24 * kGiB);
  EXPECT_EQ(knownDevice("rtx-4090")->name, "RTX 4090");
  EXPECT_EQ(knownDevice("A100")->name, "A100-80GB");
  EXPECT_EQ(knownDevice("A100-SXM4-40GB")->name, "A100-40GB");
  EXPECT_EQ(knownDevice("Tesla T4")->memoryBytes, 16 * kGiB);
  EXPECT_EQ(knownDevice("H100 80GB")->name, "H100");
  EXPECT_FALSE(knownDevice("abacus"));
}

// Equal parts, the same each time.
TEST(Cluster, ThisMachine) {
  Cluster two = Cluster::thisMachine(2), again = Cluster::thisMachine(2);
  ASSERT_EQ(two.devices.size(), 2u);
  ASSERT_EQ(two.links.size(), 4u);
  Cluster one = Cluster::thisMachine(1);
  for (const Device &device : two.devices) {
    EXPECT_GT(device.f32Flops, 1e8);
    EXPECT_GE(device.bf16Flops, device.f32Flops);
    EXPECT_NEAR(device.memoryBytes, one.devices[0].memoryBytes / 2, 1024);
    EXPECT_EQ(device.node, 0);
  }
  EXPECT_EQ(two.devices[1].f32Flops, again.devices[1].f32Flops);
  EXPECT_EQ(two.link(0, 0).seconds(1000), 0);
  EXPECT_GT(two.link(0, 1).seconds(1000), 0);
}

} // namespace
