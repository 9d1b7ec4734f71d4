"""Full-waveform inversion and reverse-time migration of surveys: the commands fwi, rtm and lsrtm."""
