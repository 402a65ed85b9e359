// Fixed-width types and function qualifiers that hold for g++, nvcc and NVRTC alike.
#pragma once

#ifdef __CUDACC_RTC__  // NVRTC brings no C library headers
using int8_t = signed char;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
// Not __builtin_offsetof, which NVRTC 13.0 does not know.
#define BLINK_OFFSETOF(type, member) __INTADDR__(&(((type*)0)->member))
#else
#include <stddef.h>
#include <stdint.h>
#define BLINK_OFFSETOF(type, member) offsetof(type, member)
#endif

#ifdef __CUDACC__
#define BLINK_HD __host__ __device__
#define BLINK_DEV __device__
#else
#define BLINK_HD
#define BLINK_DEV
#endif
