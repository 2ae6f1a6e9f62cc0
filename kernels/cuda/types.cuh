// Fixed-width types and the few words that every file here uses. NVRTC has no standard headers.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using i16 = short;
using u32 = unsigned int;
using u64 = unsigned long long;
static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "widths that the host packs");

#define DEVICE __device__ __forceinline__

constexpr u32 ALL_LANES = 0xffffffffu;

// Where piece j of row g of a unit of the tape lies, for lane = 4 g + j, and which piece lies at place `lane`: at 4 g + (j ^ g / 2).
DEVICE constexpr u32 piece_place(u32 lane) { return lane ^ lane >> 3; }

DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
DEVICE constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
