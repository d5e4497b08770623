//===- StoredTypes.h - Operands that are narrower than f32 ------*- C++ -*-===//
//
// Products compute in f32. Their operands may be stored as bf16 or f16; a
// kernel widens them, exactly, as it reads them. bf16 is handled as bits, so
// that no CPU needs instructions for it.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_STOREDTYPES_H
#define MGQ_PASSES_KERNELS_STOREDTYPES_H

#include "passes/Kernels/KernelBuilder.h"

namespace mgq::kernels {

/// How elements of an operand lie in memory.
enum class Stored { f32, bf16, f16 };

/// Of an element type that kernels read, or nothing.
std::optional<Stored> storedOf(mlir::Type element);

/// The type that addresses count in and loads have.
mlir::Type elementType(KernelBuilder &kb, Stored stored);

/// The element type of a memref.
mlir::Type floatType(KernelBuilder &kb, Stored stored);

/// "" for f32, else `prefix` and the type's name.
std::string suffixOf(Stored stored, llvm::StringRef prefix = "_");

/// A vector of f32 from elements in order.
Val loadWide(KernelBuilder &kb, Stored stored, Val pointer);
/// Lanes outside the mask are not read and are 0.
Val maskedLoadWide(KernelBuilder &kb, Stored stored, Val pointer, Val mask);

/// Two vectors of f32 from 2 x lanes elements of a packed panel. f16 lies there
/// in order. bf16 lies in pairs of 32 bits, element i of the first vector below
/// element i of the second: so a shift and a mask widen both.
llvm::SmallVector<Val, 2> loadPair(KernelBuilder &kb, Stored stored,
                                   Val pointer);
/// One bf16 as the lower half of 32 bits, the upper half zero.
Val loadLow(KernelBuilder &kb, Val pointer);

/// The nearest values of a type, ties to even; denormals and NaN stay.
Val roundTo(KernelBuilder &kb, Stored stored, Val vector);
/// Writes such elements; the values must be ones that the type has.
void storePair(KernelBuilder &kb, Stored stored, Val low, Val high,
               Val pointer);

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_STOREDTYPES_H
